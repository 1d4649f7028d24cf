// Whether processes of this machine are in a debugger: one that a person looks at is not lost.
#pragma once

#include "watch/heartbeat.h"

namespace accelerant::dist {

// Of this process, now.
Whereabouts own_whereabouts();

// Whether this process was in a debugger when it last wrote or, if it is on this machine, is now.
bool is_traced(const Whereabouts& process);

}  // namespace accelerant::dist
