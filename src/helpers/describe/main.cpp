// Describes the libtorch that it loads, for `accelerant env`.

#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <cstdio>
#include <string>

namespace {

// Whether libtorch has a class. Looks for its virtual table, which needs no heavy header.
bool has_class(const char* mangled) {
  const std::string symbol = std::string("_ZTV") + mangled;
  return ::dlsym(RTLD_DEFAULT, symbol.c_str()) != nullptr;
}

}  // namespace

int main() {
  const at::CUDAHooksInterface& cuda = at::detail::getCUDAHooks();
  std::printf("- libtorch version: %s\n", TORCH_VERSION);
  if (cuda.hasCUDART()) {
    const long version = cuda.versionCUDART();  // 13000 is 13.0
    const int devices = cuda.getNumGPUs();
    std::printf("- libtorch CUDA: %ld.%ld, %d %s\n", version / 1000, version % 1000 / 10, devices,
                devices == 1 ? "device" : "devices");
  } else {
    std::puts("- libtorch CUDA: none (built without CUDA)");
  }
  std::printf("- libtorch backends:%s%s\n", has_class("N4c10d16ProcessGroupGlooE") ? " gloo" : "",
              has_class("N4c10d16ProcessGroupNCCLE") ? " nccl" : "");
  std::printf("- libtorch threads: %d\n", at::get_num_threads());
}
