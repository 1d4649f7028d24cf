// Faults on demand: named places in the code where a test can kill, stop or slow down the process.
//
//   failpoint("checkpoint.before_rename");      // does nothing, unless
//   ACCELERANT_FAILPOINT=checkpoint.before_rename:kill ./train
//
// The variable holds one or more of `name:action[@n][/rank=k]`, separated by commas.
//
//   kill       SIGKILL to this process
//   stop       SIGSTOP to this process
//   hang       this thread blocks forever
//   exit       the process ends at once with exit code 3
//   throw      an accelerant::Error that names the failpoint
//   sleep=<ms> this thread sleeps for that many milliseconds
//
//   @n         only the n-th time the place is reached, counted from 1 (default: the first
//              time; every time for sleep)
//   /rank=k    only in the process whose RANK (or its MPI or Slurm equivalent) is k
//
// The variable is read once, when the first failpoint is reached. Thread-safe.
#pragma once

namespace accelerant {

// Costs a few nanoseconds if the variable is not set. Throws Error if its value cannot be parsed.
void failpoint(const char* name);

// Reads the variable again and resets the counters. For tests, while no other thread runs.
void reload_failpoints();

}  // namespace accelerant
