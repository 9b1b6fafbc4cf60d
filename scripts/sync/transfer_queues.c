// A Vulkan layer between the validation layer and lavapipe that makes it look like a GPU of NVIDIA's or AMD's: a second
// family has two queues for transfers. Their submits go to the only queue that there is, but the validation layer,
// above, sees three queues, and rustyflow copies by them.
//
// With HIDE_COOPERATIVE_MATRICES=1 it has none of those, so that the kernels for other GPUs run.
#include "layer.h"
#include <pthread.h>

enum { TRANSFER_FAMILY = 1 }; // lavapipe has family 0 alone

static PFN_vkGetPhysicalDeviceQueueFamilyProperties next_families;
static PFN_vkGetPhysicalDeviceQueueFamilyProperties2 next_families2;
static PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR next_cooperative;
static PFN_vkQueueSubmit next_submit;
static PFN_vkQueueWaitIdle next_wait_idle;
static PFN_vkCreateCommandPool next_pool;
static PFN_vkCreateBuffer next_buffer;
static PFN_vkGetDeviceQueue next_queue;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_long submits[2];

// A transfer queue. The loader writes to the first word of what it takes for a queue.
typedef struct Transfer {
    void *loader;
    VkQueue real;
    VkDevice device;
    uint32_t index;
    struct Transfer *next;
} Transfer;
static Transfer *transfers;

static Transfer *transfer_of(VkQueue queue) {
    Transfer *transfer = transfers;
    while (transfer && (VkQueue)transfer != queue) transfer = transfer->next;
    return transfer;
}

static VKAPI_ATTR VkResult VKAPI_CALL submit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence) {
    pthread_mutex_lock(&lock);
    Transfer *transfer = transfer_of(queue);
    submits[transfer != NULL]++;
    VkResult result = next_submit(transfer ? transfer->real : queue, count, infos, fence);
    pthread_mutex_unlock(&lock);
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL wait_idle(VkQueue queue) {
    pthread_mutex_lock(&lock);
    Transfer *transfer = transfer_of(queue);
    VkResult result = next_wait_idle(transfer ? transfer->real : queue);
    pthread_mutex_unlock(&lock);
    return result;
}

static VKAPI_ATTR void VKAPI_CALL get_queue(VkDevice device, uint32_t family, uint32_t index, VkQueue *queue) {
    if (family != TRANSFER_FAMILY) {
        next_queue(device, family, index, queue);
        return;
    }
    pthread_mutex_lock(&lock);
    Transfer *transfer = transfers;
    while (transfer && !(transfer->device == device && transfer->index == index)) transfer = transfer->next;
    if (!transfer) {
        transfer = calloc(1, sizeof *transfer);
        next_queue(device, 0, 0, &transfer->real);
        transfer->loader = *(void **)transfer->real;
        transfer->device = device;
        transfer->index = index;
        transfer->next = transfers;
        transfers = transfer;
    }
    *queue = (VkQueue)transfer;
    pthread_mutex_unlock(&lock);
}

static const VkQueueFamilyProperties transfer_family = {
    .queueFlags = VK_QUEUE_TRANSFER_BIT,
    .queueCount = 2,
    .minImageTransferGranularity = {1, 1, 1},
};

static VKAPI_ATTR void VKAPI_CALL families(VkPhysicalDevice physical, uint32_t *count, VkQueueFamilyProperties *list) {
    if (list && *count > TRANSFER_FAMILY) {
        list[TRANSFER_FAMILY] = transfer_family;
        uint32_t real = TRANSFER_FAMILY;
        next_families(physical, &real, list);
    } else if (list) {
        next_families(physical, count, list);
        return;
    }
    *count = TRANSFER_FAMILY + 1;
}

static VKAPI_ATTR void VKAPI_CALL families2(VkPhysicalDevice physical, uint32_t *count,
                                            VkQueueFamilyProperties2 *list) {
    if (list && *count > TRANSFER_FAMILY) {
        list[TRANSFER_FAMILY].queueFamilyProperties = transfer_family;
        uint32_t real = TRANSFER_FAMILY;
        next_families2(physical, &real, list);
    } else if (list) {
        next_families2(physical, count, list);
        return;
    }
    *count = TRANSFER_FAMILY + 1;
}

static VKAPI_ATTR VkResult VKAPI_CALL cooperative(VkPhysicalDevice physical, uint32_t *count,
                                                  VkCooperativeMatrixPropertiesKHR *list) {
    if (!getenv("HIDE_COOPERATIVE_MATRICES")) return next_cooperative(physical, count, list);
    *count = 0;
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_pool(VkDevice device, const VkCommandPoolCreateInfo *info,
                                                  const VkAllocationCallbacks *allocator, VkCommandPool *pool) {
    VkCommandPoolCreateInfo real = *info;
    real.queueFamilyIndex = 0;
    return next_pool(device, &real, allocator, pool);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_buffer(VkDevice device, const VkBufferCreateInfo *info,
                                                    const VkAllocationCallbacks *allocator, VkBuffer *buffer) {
    VkBufferCreateInfo real = *info;
    real.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
    real.queueFamilyIndexCount = 0;
    return next_buffer(device, &real, allocator, buffer);
}

static void instance_created(VkInstance instance) {
#define FIND(function, name) function = (void *)next_instance_proc(instance, name)
    FIND(next_families, "vkGetPhysicalDeviceQueueFamilyProperties");
    FIND(next_families2, "vkGetPhysicalDeviceQueueFamilyProperties2");
    FIND(next_cooperative, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
#undef FIND
}

static VkResult create_device(PFN_vkCreateDevice next, VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                              const VkAllocationCallbacks *allocator, VkDevice *device) {
    VkDeviceQueueCreateInfo queues[8];
    VkDeviceCreateInfo real = *info;
    real.queueCreateInfoCount = 0;
    real.pQueueCreateInfos = queues;
    for (uint32_t i = 0; i < info->queueCreateInfoCount; i++)
        if (info->pQueueCreateInfos[i].queueFamilyIndex != TRANSFER_FAMILY)
            queues[real.queueCreateInfoCount++] = info->pQueueCreateInfos[i];
    VkResult result = next(physical, &real, allocator, device);
    if (result != VK_SUCCESS) return result;
#define FIND(function, name) function = (void *)next_device_proc(*device, name)
    FIND(next_submit, "vkQueueSubmit");
    FIND(next_wait_idle, "vkQueueWaitIdle");
    FIND(next_pool, "vkCreateCommandPool");
    FIND(next_buffer, "vkCreateBuffer");
    FIND(next_queue, "vkGetDeviceQueue");
#undef FIND
    return result;
}

static PFN_vkVoidFunction own(const char *name) {
    OWN("vkGetPhysicalDeviceQueueFamilyProperties", families);
    OWN("vkGetPhysicalDeviceQueueFamilyProperties2", families2);
    OWN("vkGetPhysicalDeviceQueueFamilyProperties2KHR", families2);
    OWN("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR", cooperative);
    OWN("vkQueueSubmit", submit);
    OWN("vkQueueWaitIdle", wait_idle);
    OWN("vkCreateCommandPool", create_pool);
    OWN("vkCreateBuffer", create_buffer);
    OWN("vkGetDeviceQueue", get_queue);
    return NULL;
}

__attribute__((destructor)) static void report(void) {
    if (submits[0])
        fprintf(stderr, "transfer_queues: %ld submits to transfer queues, %ld others\n", submits[1], submits[0]);
}
