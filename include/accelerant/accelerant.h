// All of Accelerant. Programs that care for compile time include the parts they use.
#pragma once

#include "accelerant/amp/amp_optimizer.h"
#include "accelerant/amp/autocast.h"
#include "accelerant/amp/custom_function.h"
#include "accelerant/amp/grad_scaler.h"
#include "accelerant/amp/overflow_report.h"
#include "accelerant/amp/step_result.h"
#include "accelerant/amp/unscale.h"
#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerant/optim/clip_grad.h"
#include "accelerant/tensor/cast.h"
#include "accelerant/tensor/nested.h"
#include "accelerant/track/progress_bar.h"
#include "accelerant/version.h"
