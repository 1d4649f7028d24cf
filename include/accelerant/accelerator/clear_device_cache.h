// Gives memory back to the device.
//
//   output.reset();                     // nothing can be freed that somebody still holds
//   accelerant::clear_device_cache();
#pragma once

namespace accelerant {

// Frees the device memory that torch's allocator keeps for reuse, on all devices; other programs can then
// have it. It does not make more room for torch itself, which would reuse that memory anyway, unless it is
// in pieces. Waits for the device. Without an accelerator nothing happens.
void clear_device_cache();

}  // namespace accelerant
