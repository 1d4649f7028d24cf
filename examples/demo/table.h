// The table that the demo ends with.
#pragma once

#include <string>
#include <vector>

namespace demo {

struct Row {
  std::string name;
  double samples_per_second = 0;
  double accuracy = 0;     // 0 to 1
  std::string equal = {};  // whether it equals the reference bit for bit; empty: not compared
};

// Speeds are compared with the first row. `reference`: the number of the run that the last column
// compares with.
void print_table(const std::vector<Row>& rows, int reference);

}  // namespace demo
