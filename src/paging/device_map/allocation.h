// What has not got a place yet while a device map is made, and what goes together with what.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "paging/device_map/module_sizes.h"

namespace accelerant::paging {

using Parts = std::deque<Part>;

// What all steps of an allocation look at.
struct AllocationModel {
  SizeTable sizes = {};
  std::vector<std::vector<std::string>> tied = {};
  std::vector<std::string> no_split = {};
};

// The parameters outside of a part that are tied to one inside of it.
std::vector<std::string> tied_outside(const AllocationModel& model, const std::string& part);

// A part together with the parts that its tied parameters are in.
struct PartWithTies {
  double bytes = 0;
  std::vector<Part> owners = {};  // one for each tied parameter, so one may occur twice
};

// Looks for the owners in `parts`, then in `more`, if given. Tied parameters in neither have got
// their place already and do not count.
PartWithTies with_ties(const AllocationModel& model, const Part& part,
                       const std::vector<std::string>& tied, const Parts& parts,
                       const Parts* more = nullptr);

// The parts that a part can be divided into; empty if it cannot.
std::vector<Part> divided(const AllocationModel& model, const Part& part);

// Finds a part that needs at most `limit` bytes, breadth first, and takes it out of `parts`. The
// modules around it are divided. Empty, without any change, if there is none.
std::optional<Part> take_fitting(const AllocationModel& model, Parts& parts, double limit);

}  // namespace accelerant::paging
