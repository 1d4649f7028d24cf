// The threads in which autograd computes on devices, and forked children.
//
// libtorch has such a thread for every GPU that it sees, also if a program computes on the CPU only.
// When a program exits, libtorch asks these threads to end and waits for them, up to 10 seconds
// (TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT). A forked child has none of them, so that each would wait.
#pragma once

namespace accelerant::compat {

// Called in a process that trains: the children that it forks from now on exit without waiting.
void let_forked_children_exit();

}  // namespace accelerant::compat
