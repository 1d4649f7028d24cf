// Makes sure that nothing of a run survives a launcher that was killed.
#pragma once

#include <sys/types.h>

#include <string>

#include "accelerant/core/detail/own_process.h"
#include "core/fd.h"

namespace accelerant::launch {

// A second, tiny process. The kernel kills the ranks when their launcher dies, but not what they
// have started themselves, such as the program behind a shell script. The guardian notices the
// launcher's death by the end of a pipe, kills the process groups it knows of, and removes the
// launch's temporary folder. Only for a process that does nothing but launch, because it is a fork
// without exec.
class Guardian {
 public:
  // `temporary_folder` is removed; empty: none.
  explicit Guardian(const std::string& temporary_folder);
  ~Guardian();  // ends the process
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  void watch(pid_t group);
  void forget(pid_t group);

 private:
  void tell(pid_t message);

  pid_t pid_ = -1;
  Fd pipe_;
  accelerant::detail::OwnProcess process_;
};

}  // namespace accelerant::launch
