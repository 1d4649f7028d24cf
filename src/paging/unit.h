// Which parameters of a module come and go together.
//
// A unit is the smallest thing that is fetched: one transfer, one block of memory. Good units are
// used as a whole within a short time, such as one layer of a transformer, and are large enough
// that a transfer pays.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "paging/source.h"

namespace torch::nn {
class Module;
}

namespace accelerant::paging {

struct NamedParameter {
  std::string name = {};
  at::Tensor parameter = {};
};

// What becomes a unit of a Pager.
struct UnitPlan {
  // For messages, and unique in a Pager: the path of a module.
  std::string name = {};

  // A parameter may be named twice (tied parameters), but belongs to one unit: the first one that
  // names it or another parameter with the same storage.
  std::vector<NamedParameter> parameters = {};

  // Where the values come from. Default (null): host memory, pinned if the device is an
  // accelerator, that is made from the parameters' present values.
  std::shared_ptr<Source> source = nullptr;
};

struct UnitOptions {
  // Paths of modules whose parameters form a unit each. A parameter belongs to the longest path
  // that is its prefix, all others to a last unit named "". Default: units are found by themselves:
  // the children of a ModuleList or Sequential are units, and after them, of what remains, the
  // parameters of each module. A child that contains a ModuleList is divided the same way, a
  // Sequential in a Sequential as well.
  std::vector<std::string> prefixes = {};

  // Neighbours smaller than this are joined, in bytes. Does not apply to `prefixes`.
  std::size_t smallest_unit = std::size_t{1} << 20;

  // Parameters with at most this many elements are left alone: norms and biases take little memory,
  // and operators on ordinary tensors cost nothing extra. 0 pages all parameters.
  int64_t small_parameter = 100'000;
};

// Divides the parameters of a module into units. Buffers are left out: some operators write to them
// without saying so. So are parameters without elements, or that are not dense. Throws Error if a
// prefix names no parameter.
std::vector<UnitPlan> plan_units(const torch::nn::Module& module, const UnitOptions& options = {});

// How many bytes the block of each unit will have. Memory that parameters share counts once, in the
// first unit that names one of them.
std::vector<uint64_t> bytes_of_blocks(std::span<const UnitPlan> units);

}  // namespace accelerant::paging
