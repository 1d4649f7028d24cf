#include "table.h"

#include <cmath>
#include <cstdio>

#include "console.h"

namespace demo {

void print_table(const std::vector<Row>& rows, int reference) {
  const std::string equal = "equal to " + std::to_string(reference);
  char header[100];
  std::snprintf(header, sizeof header, "   %-35s %9s %7s %10s  %s", "", "samples/s", "x plain",
                "accuracy %", equal.c_str());
  print_title(header);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    std::printf("%zu. %-35s %9s %7.2f %10.2f  %s\n", i + 1, row.name.c_str(),
                with_thousands(std::llround(row.samples_per_second)).c_str(),
                row.samples_per_second / rows.front().samples_per_second, 100 * row.accuracy,
                row.equal.empty() ? "-" : row.equal.c_str());
  }
}

}  // namespace demo
