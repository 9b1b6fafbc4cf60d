// What a Vulkan layer must do to stand between a program and its driver. The layer defines `own`, `instance_created`
// and `create_device`.
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

// Of the next layer, or the driver. All instances and devices have one driver, so these are the same for all.
static PFN_vkGetInstanceProcAddr next_instance_proc;
static PFN_vkGetDeviceProcAddr next_device_proc;
static VkInstance last_instance;

// The layer's own function of this name, if it has one.
static PFN_vkVoidFunction own(const char *name);
static void instance_created(VkInstance instance);
static VkResult create_device(PFN_vkCreateDevice next, VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                              const VkAllocationCallbacks *allocator, VkDevice *device);

#define OWN(vulkan_name, function)            \
    if (!strcmp(name, vulkan_name))           \
        return (PFN_vkVoidFunction)(function)

static VKAPI_ATTR VkResult VKAPI_CALL layer_create_instance(const VkInstanceCreateInfo *info,
                                                            const VkAllocationCallbacks *allocator,
                                                            VkInstance *instance) {
    VkLayerInstanceCreateInfo *link = (VkLayerInstanceCreateInfo *)info->pNext;
    while (!(link->sType == VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO && link->function == VK_LAYER_LINK_INFO))
        link = (VkLayerInstanceCreateInfo *)link->pNext;
    next_instance_proc = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    PFN_vkCreateInstance next = (PFN_vkCreateInstance)next_instance_proc(NULL, "vkCreateInstance");
    VkResult result = next(info, allocator, instance);
    if (result == VK_SUCCESS) {
        last_instance = *instance;
        instance_created(*instance);
    }
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL layer_create_device(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                                                          const VkAllocationCallbacks *allocator, VkDevice *device) {
    VkLayerDeviceCreateInfo *link = (VkLayerDeviceCreateInfo *)info->pNext;
    while (!(link->sType == VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO && link->function == VK_LAYER_LINK_INFO))
        link = (VkLayerDeviceCreateInfo *)link->pNext;
    PFN_vkGetInstanceProcAddr instance_proc = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    next_device_proc = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    PFN_vkCreateDevice next = (PFN_vkCreateDevice)instance_proc(last_instance, "vkCreateDevice");
    return create_device(next, physical, info, allocator, device);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL layer_device_proc(VkDevice device, const char *name) {
    OWN("vkGetDeviceProcAddr", layer_device_proc);
    PFN_vkVoidFunction function = own(name);
    return function ? function : next_device_proc(device, name);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL layer_instance_proc(VkInstance instance, const char *name) {
    OWN("vkGetInstanceProcAddr", layer_instance_proc);
    OWN("vkGetDeviceProcAddr", layer_device_proc);
    OWN("vkCreateInstance", layer_create_instance);
    OWN("vkCreateDevice", layer_create_device);
    PFN_vkVoidFunction function = own(name);
    return function ? function : next_instance_proc(instance, name);
}

VKAPI_ATTR VkResult VKAPI_CALL vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *interface) {
    interface->loaderLayerInterfaceVersion = 2;
    interface->pfnGetInstanceProcAddr = layer_instance_proc;
    interface->pfnGetDeviceProcAddr = layer_device_proc;
    interface->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
