// Single files of a training run, to and from Python: the state of an optimizer and of a
// GradScaler.
//
//   const optim::ParameterNames names(net->named_parameters());
//   save_python_optimizer(adamw, names, "optimizer.bin");  // load_state_dict(torch.load(path))
//   load_python_optimizer(adamw, names, "optimizer.bin");  // torch.save(state_dict(), path)
//
//   save_python_scaler(scaler, "scaler.pt");
//   load_python_scaler(scaler, "scaler.pt");
//
//   load_torch_optimizer(adamw, "optimizer.pt");  // torch::save(adamw, "optimizer.pt") in C++
//
// Files are written completely or not at all, and Python opens them with
// torch.load(weights_only=True). Reading never executes anything in a file. Everything is checked
// before anything changes; an Error names the file and lists all differences.
//
// For the whole state of a training run see Accelerator::save_state.
#pragma once

#include <string>

#include "accelerant/optim/optimizer_state.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerant {

class GradScaler;

// Writes the state in Python's structure, for SGD, Adam, AdamW, Adagrad, RMSprop and LBFGS. Tensors
// are written for the CPU; Python's load_state_dict moves them to the parameters. In Python, load
// it before creating a scheduler: the file has none of the entries that schedulers add to the
// groups.
void save_python_optimizer(torch::optim::Optimizer& optimizer, const optim::ParameterNames& names,
                           const std::string& path);

// Python's state identifies parameters by number, so the groups must be those of the Python
// program, with the parameters in the same order. If the groups have "param_names", those decide
// instead.
void load_python_optimizer(torch::optim::Optimizer& optimizer, const optim::ParameterNames& names,
                           const std::string& path);

// Writes PyTorch's five keys or, as in Python, an empty dict if the scaler is disabled. Waits for
// the device.
void save_python_scaler(const GradScaler& scaler, const std::string& path);

// Like GradScaler::load_state_dict. Does nothing if the scaler is disabled, but the file must still
// be readable.
void load_python_scaler(GradScaler& scaler, const std::string& path);

// Reads a file of libtorch's own torch::save(optimizer, path), since libtorch 1.5. It also
// identifies parameters by number. libtorch's torch::load silently accepts states of other shapes
// and classes; here they are an Error.
void load_torch_optimizer(torch::optim::Optimizer& optimizer, const std::string& path);

}  // namespace accelerant
