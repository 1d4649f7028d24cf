#define ACCELERANT_FUSED_LOOPS fused_loops_default
#include "kernels/cpu/fused_loops_for.h"
