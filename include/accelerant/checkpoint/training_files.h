// Single files of a training, to and from Python: the state of an optimizer and of a GradScaler.
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
// Files are written whole or not at all, and Python opens them with torch.load(weights_only=True).
// Of a file that is read nothing is executed. Everything in it is checked before anything is
// changed; an Error names the file and lists what does not fit.
//
// For the whole state of a training see Accelerator::save_state.
#pragma once

#include <string>

#include "accelerant/optim/optimizer_state.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerant {

class GradScaler;

// The state in Python's structure: of SGD, Adam, AdamW, Adagrad, RMSprop and LBFGS. Tensors are
// written for the CPU; Python's load_state_dict moves them to the parameters. In Python, load it
// before a scheduler is made: the file has none of the entries that schedulers leave in the groups.
void save_python_optimizer(torch::optim::Optimizer& optimizer, const optim::ParameterNames& names,
                           const std::string& path);

// Python's state knows parameters by number: the groups must be those of the Python program, with
// the parameters in the same order, unless the groups have "param_names", which then decide.
void load_python_optimizer(torch::optim::Optimizer& optimizer, const optim::ParameterNames& names,
                           const std::string& path);

// PyTorch's five keys; an empty dict, as in Python, if the scaler is disabled. Waits for the
// device.
void save_python_scaler(const GradScaler& scaler, const std::string& path);

// As GradScaler::load_state_dict: nothing happens when disabled, but for the file, which must be
// readable.
void load_python_scaler(GradScaler& scaler, const std::string& path);

// A file of libtorch's own torch::save(optimizer, path), since libtorch 1.5. Parameters are known
// by number there, too. libtorch's torch::load takes states of other shapes and of other classes
// without a word; here they are an Error.
void load_torch_optimizer(torch::optim::Optimizer& optimizer, const std::string& path);

}  // namespace accelerant
