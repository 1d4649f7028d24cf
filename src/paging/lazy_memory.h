// Memory that exists only as far as it is written.
#pragma once

#include <ATen/core/Tensor.h>

namespace accelerant::paging {

// A tensor on the CPU with the shape, strides and type of another, filled with zeros. Its pages
// come with the first write, and it may be larger than the memory of the machine. Throws
// std::bad_alloc if the address space does not suffice.
at::Tensor lazy_zeros(const at::Tensor& shape);

}  // namespace accelerant::paging
