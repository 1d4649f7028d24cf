#include "accelerant/accelerator/utilities.h"

#include "compat/device_cache.h"

namespace accelerant {

void clear_device_cache() { compat::empty_device_cache(); }

}  // namespace accelerant
