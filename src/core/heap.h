// How malloc treats freed memory in this process.
#pragma once

namespace accelerant {

// Lets malloc keep freed memory for the next step, instead of returning it to the system and
// clearing new pages for the same gradients. Affects the whole process. Does nothing if the
// environment already configures malloc, or if the C library is not glibc.
void keep_freed_memory();

}  // namespace accelerant
