// How this process's malloc treats memory that was freed.
#pragma once

namespace accelerant {

// Lets malloc keep freed memory for the next step, instead of giving it back to the system and
// clearing new pages for the same gradients again. Does nothing where the environment already says
// something about malloc, and with other libraries than glibc. For the whole process.
void keep_freed_memory();

}  // namespace accelerant
