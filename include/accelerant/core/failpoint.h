// Faults on demand: a named place in the code where a test makes the process die, stop or be slow.
//
//   failpoint("checkpoint.before_rename");      // does nothing, unless
//   ACCELERANT_FAILPOINT=checkpoint.before_rename:kill ./train
//
// The variable holds one or more of `name:action[@n][/rank=k]`, separated by commas.
//
//   kill       SIGKILL to this process
//   stop       SIGSTOP to this process
//   hang       this thread blocks for ever
//   exit       the process ends at once with exit code 3
//   throw      an accelerant::Error that names the failpoint
//   sleep=<ms> this thread sleeps so many milliseconds
//
//   @n         only when the place is reached for the n-th time, counted from 1 (default: the first
//              time; every time for sleep)
//   /rank=k    only in the process whose RANK (or the variable of MPI or Slurm for it) is k
//
// The variable is read once, when the first failpoint is reached. Thread-safe.
#pragma once

namespace accelerant {

// Costs a few nanoseconds where the variable is not set. A value that cannot be read is an Error.
void failpoint(const char* name);

// Reads the variable again and starts counting anew. For tests, while no other thread runs.
void reload_failpoints();

}  // namespace accelerant
