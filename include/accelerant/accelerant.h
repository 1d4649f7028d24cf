// A training loop: the Accelerator, what it prepares, data, schedules, models saved and loaded.
//
// Not part of it, to be included where they are used: dist/sync_batch_norm.h and nn/layers.h, which
// cost as much as torch/torch.h; format/safetensors.h, files without models;
// launch/debug_launcher.h.
#pragma once

#include "accelerant/accelerator/accelerator.h"
#include "accelerant/accelerator/utilities.h"
#include "accelerant/amp.h"
#include "accelerant/checkpoint/models.h"
#include "accelerant/checkpoint/training_files.h"
#include "accelerant/core/error.h"
#include "accelerant/core/failpoint.h"
#include "accelerant/core/log.h"
#include "accelerant/data/loader.h"
#include "accelerant/dist/collectives.h"
#include "accelerant/dist/local_sgd.h"
#include "accelerant/dist/process_control.h"
#include "accelerant/nn/activation_checkpoint.h"
#include "accelerant/optim/clip_grad.h"
#include "accelerant/optim/fused_step.h"
#include "accelerant/optim/lion.h"
#include "accelerant/optim/lr_scheduler.h"
#include "accelerant/optim/optimizer_state.h"
#include "accelerant/tensor/nested.h"
#include "accelerant/track/progress_bar.h"
#include "accelerant/version.h"
