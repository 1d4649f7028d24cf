// Mixed precision alone, with the meaning of torch.amp: GradScaler, autocast and custom autograd
// functions. For loops that need nothing else.
#pragma once

#include "accelerant/amp/autocast.h"
#include "accelerant/amp/grad_scaler.h"
