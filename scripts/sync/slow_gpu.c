// A Vulkan layer between rustyflow and the validation layer. It makes a slow GPU of lavapipe, which is done when a
// submit returns, so that a missing wait for another queue would never be seen: the values of timeline semaphores stay
// what they were for 20 ms after each submit, unless somebody waits.
//
// And it leaves out what the validation layer must then miss, and says on stderr what it was:
//
// - LEAVE_OUT_BARRIER=N: all barriers between two dispatches of a command buffer, at the Nth place where there are any,
//   if one thread records commands;
// - LEAVE_OUT_WAITS=1: every wait of transfer queues for other queues.
#include "layer.h"
#include <pthread.h>
#include <time.h>

static const double DELAY_MS = 20;

static PFN_vkCmdPipelineBarrier next_barrier;
static PFN_vkCmdDispatch next_dispatch;
static PFN_vkQueueSubmit next_submit;
static PFN_vkGetDeviceQueue next_queue;
static PFN_vkGetSemaphoreCounterValue next_counter;
static PFN_vkWaitSemaphores next_wait;
static PFN_vkDestroySemaphore next_destroy;

static VkCommandBuffer dispatched;
static int after_barrier;
static long places, waits;
static VkQueue transfer_queues[64];
static int transfer_queue_count;

// What the host knows of a semaphore.
typedef struct Known {
    VkSemaphore semaphore;
    uint64_t value;
    struct Known *next;
} Known;
static Known *known;
static double last_submit;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static Known *known_of(VkSemaphore semaphore) {
    Known *found = known;
    while (found && found->semaphore != semaphore) found = found->next;
    if (!found) {
        found = calloc(1, sizeof *found);
        found->semaphore = semaphore;
        found->next = known;
        known = found;
    }
    return found;
}

static VKAPI_ATTR VkResult VKAPI_CALL counter(VkDevice device, VkSemaphore semaphore, uint64_t *value) {
    VkResult result = VK_SUCCESS;
    pthread_mutex_lock(&lock);
    Known *here = known_of(semaphore);
    if (now_ms() - last_submit > DELAY_MS) result = next_counter(device, semaphore, &here->value);
    *value = here->value;
    pthread_mutex_unlock(&lock);
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL wait(VkDevice device, const VkSemaphoreWaitInfo *info, uint64_t timeout) {
    VkResult result = next_wait(device, info, timeout);
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; result == VK_SUCCESS && i < info->semaphoreCount; i++) {
        Known *here = known_of(info->pSemaphores[i]);
        if (here->value < info->pValues[i]) here->value = info->pValues[i];
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static VKAPI_ATTR void VKAPI_CALL destroy(VkDevice device, VkSemaphore semaphore,
                                          const VkAllocationCallbacks *allocator) {
    pthread_mutex_lock(&lock);
    known_of(semaphore)->value = 0; // the handle may come again
    pthread_mutex_unlock(&lock);
    next_destroy(device, semaphore, allocator);
}

static VKAPI_ATTR void VKAPI_CALL dispatch(VkCommandBuffer commands, uint32_t x, uint32_t y, uint32_t z) {
    dispatched = commands;
    after_barrier = 0;
    next_dispatch(commands, x, y, z);
}

static VKAPI_ATTR void VKAPI_CALL barrier(VkCommandBuffer commands, VkPipelineStageFlags from, VkPipelineStageFlags to,
                                          VkDependencyFlags flags, uint32_t memory_count, const VkMemoryBarrier *memory,
                                          uint32_t buffer_count, const VkBufferMemoryBarrier *buffers,
                                          uint32_t image_count, const VkImageMemoryBarrier *images) {
    const char *which = getenv("LEAVE_OUT_BARRIER");
    if (which && commands == dispatched) {
        places += !after_barrier;
        after_barrier = 1;
        if (places == atol(which)) {
            fprintf(stderr, "slow_gpu: left out barriers of %u buffers\n", buffer_count);
            return;
        }
    }
    next_barrier(commands, from, to, flags, memory_count, memory, buffer_count, buffers, image_count, images);
}

static VKAPI_ATTR void VKAPI_CALL get_queue(VkDevice device, uint32_t family, uint32_t index, VkQueue *queue) {
    next_queue(device, family, index, queue);
    if (family != 0 && transfer_queue_count < 64) transfer_queues[transfer_queue_count++] = *queue;
}

static VKAPI_ATTR VkResult VKAPI_CALL submit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence) {
    int transfers = 0;
    pthread_mutex_lock(&lock);
    last_submit = now_ms();
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < transfer_queue_count; i++) transfers |= transfer_queues[i] == queue;
    if (!getenv("LEAVE_OUT_WAITS") || !transfers || count != 1 || infos->waitSemaphoreCount == 0)
        return next_submit(queue, count, infos, fence);
    // The values waited for belong to the semaphores: they go too.
    VkSubmitInfo without = *infos;
    VkTimelineSemaphoreSubmitInfo timeline = *(const VkTimelineSemaphoreSubmitInfo *)infos->pNext;
    if (timeline.sType != VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO) abort();
    without.waitSemaphoreCount = timeline.waitSemaphoreValueCount = 0;
    without.pNext = &timeline;
    waits++;
    return next_submit(queue, 1, &without, fence);
}

static void instance_created(VkInstance instance) { (void)instance; }

static VkResult create_device(PFN_vkCreateDevice next, VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                              const VkAllocationCallbacks *allocator, VkDevice *device) {
    VkResult result = next(physical, info, allocator, device);
    if (result != VK_SUCCESS) return result;
#define FIND(function, name) function = (void *)next_device_proc(*device, name)
    FIND(next_barrier, "vkCmdPipelineBarrier");
    FIND(next_dispatch, "vkCmdDispatch");
    FIND(next_submit, "vkQueueSubmit");
    FIND(next_queue, "vkGetDeviceQueue");
    FIND(next_counter, "vkGetSemaphoreCounterValue");
    FIND(next_wait, "vkWaitSemaphores");
    FIND(next_destroy, "vkDestroySemaphore");
#undef FIND
    return result;
}

static PFN_vkVoidFunction own(const char *name) {
    OWN("vkCmdPipelineBarrier", barrier);
    OWN("vkCmdDispatch", dispatch);
    OWN("vkQueueSubmit", submit);
    OWN("vkGetDeviceQueue", get_queue);
    OWN("vkGetSemaphoreCounterValue", counter);
    OWN("vkGetSemaphoreCounterValueKHR", counter);
    OWN("vkWaitSemaphores", wait);
    OWN("vkWaitSemaphoresKHR", wait);
    OWN("vkDestroySemaphore", destroy);
    return NULL;
}

__attribute__((destructor)) static void report(void) {
    if (waits) fprintf(stderr, "slow_gpu: left out %ld waits\n", waits);
}
