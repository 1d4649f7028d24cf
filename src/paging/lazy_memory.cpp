#include "paging/lazy_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <sys/mman.h>

#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace accelerant::paging {
namespace {

struct Mapping {
  explicit Mapping(std::size_t bytes)
      : size(bytes),
        // Without a reservation, Linux does not refuse what is larger than the memory.
        address(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (address == MAP_FAILED) throw std::bad_alloc();
  }
  ~Mapping() { munmap(address, size); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::size_t size;
  void* address;
};

}  // namespace

at::Tensor lazy_zeros(const at::Tensor& shape) {
  const std::size_t bytes = shape.storage().nbytes();
  auto mapping = std::make_unique<Mapping>(bytes);
  void* const address = mapping->address;
  c10::DataPtr data(
      address, mapping.release(), [](void* context) { delete static_cast<Mapping*>(context); },
      at::kCPU);
  // With the allocator, resize_() can replace the memory.
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data),
                             c10::GetCPUAllocator(), /*resizable=*/true);
  return at::empty({0}, shape.options().device(at::kCPU))
      .set_(storage, 0, shape.sizes(), shape.strides());
}

}  // namespace accelerant::paging
