#include "accelerant/dist/environment.h"

#include <cstdlib>
#include <string>

#include "accelerant/core/error.h"

namespace accelerant::dist {

Environment Environment::detect() {
  const char* world_size = std::getenv("WORLD_SIZE");
  if (world_size != nullptr && std::string(world_size) != "1" && *world_size != '\0') {
    throw Error(ErrorDetails{.problem = "Several processes are not supported by this version",
                             .expected = "WORLD_SIZE unset or 1",
                             .got = "WORLD_SIZE=" + std::string(world_size),
                             .hint = "start one process, without torchrun or mpirun"});
  }
  return {};
}

}  // namespace accelerant::dist
