// How operators reach the pager: a dispatch key on the parameters, and one function for all
// operators with such an argument.
//
// The key is one that libtorch reserves for programs outside of it and does not use. Aliases of a
// parameter (views, detach(), what autograd saves for backward) carry it, results of computations
// do not. The function finds out which units an operator needs, keeps them in memory, and passes
// the call on to the kernels that would have run without it.
#pragma once

#include "compat/paging_key.h"

namespace accelerant::paging {

// If a libtorch uses this key itself, start_interception() says so.
using compat::has_paging_key;
using compat::paging_key;

// Makes operators with the key pass through the pager, once per process, and checks that they do.
// Throws Error, which names the version of libtorch, if that is impossible.
void start_interception();

}  // namespace accelerant::paging
