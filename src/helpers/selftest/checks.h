// What `accelerant test` checks, on every rank. Each check throws an Error if it fails.
#pragma once

namespace accelerant {
class Accelerator;
}

namespace accelerant::selftest {

// The environment and the socket that the launcher gives its ranks.
void check_launch_contract();

// Tensors and objects reach all processes unchanged.
void check_exchanges(const Accelerator& accelerator);

// Every sample goes to exactly one process.
void check_loaders(Accelerator& accelerator);

// Training with all processes gives the same model as one process with all the data.
void check_training(Accelerator& accelerator);

// An overflow in one process makes all of them skip the step.
void check_loss_scaling();

}  // namespace accelerant::selftest
