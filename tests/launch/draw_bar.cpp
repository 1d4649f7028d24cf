// Draws a progress bar in local rank 0 while the other ranks print lines:
// draw_bar [items [the item at which rank 0 dies]].
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "accelerant/track/progress_bar.h"

int main(int argc, char** argv) {
  const int items = argc > 1 ? std::atoi(argv[1]) : 20;
  const int death = argc > 2 ? std::atoi(argv[2]) : -1;
  const char* const rank = std::getenv("LOCAL_RANK");
  const bool is_main = rank == nullptr || std::string(rank) == "0";
  accelerant::ProgressBar bar(
      {.total = items, .description = "train", .refresh_interval = 0, .enabled = is_main});
  for (int i = 0; i < items; ++i) {
    if (i == death && is_main) ::_exit(3);
    if (is_main && i == items / 2) {
      bar.print("half way");
      std::fprintf(stderr, "a warning of the library\n");
    }
    if (!is_main) std::printf("line %d\n", i);
    std::fflush(stdout);
    bar.set("loss", 0.5);
    bar.advance();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}
