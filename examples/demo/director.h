// Directs the demo: starts every training as a program of its own, so that none of them profits
// from another, and compares what they tell.
#pragma once

#include "options.h"

namespace demo {

// Prints as it goes. Throws Interrupted, and std::exception if a training fails. Returns false
// if the killed run came to other losses or weights than the undisturbed one.
bool direct(Options options);

}  // namespace demo
