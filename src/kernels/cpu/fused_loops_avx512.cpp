#define ACCELERANT_FUSED_LOOPS fused_loops_avx512
#include "kernels/cpu/fused_loops_for.h"
