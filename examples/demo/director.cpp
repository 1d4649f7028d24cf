#include "director.h"

#include <accelerant/core/error.h>
#include <accelerant/version.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <deque>
#include <string>
#include <vector>

#include "child_process.h"
#include "console.h"
#include "data.h"
#include "files.h"
#include "line_difference.h"
#include "precision_choice.h"
#include "progress.h"
#include "run_log.h"
#include "table.h"

namespace demo {
namespace {

using accelerant::Precision;

constexpr std::size_t lines_kept = 20;  // of the output of a training, shown if it fails

// `accelerant`, which is built and installed beside the demo.
std::string launcher() {
  const std::string path = folder_of_this_program() + "/accelerant";
  if (!exists(path)) {
    throw accelerant::Error("The demo needs the command `accelerant` beside it, expected " + path +
                            "; build it with `make demo`");
  }
  return path;
}

// Of the runs under `accelerant launch`: two, unless they would have to share a GPU, which is slow.
int64_t processes_on(const torch::Device& device) {
  if (device.is_cpu()) return 2;
  return std::clamp<int64_t>(static_cast<int64_t>(torch::cuda::device_count()), 1, 2);
}

class Director {
 public:
  explicit Director(Options options)
      : options_(std::move(options)), processes_(processes_on(device_of(options_))) {}

  bool run();

 private:
  struct Run {
    std::string name;  // as titles and the table have it
    RunLog log;
    std::string project = {};
  };

  void introduce();
  Run run_alone(const std::string& loop, Precision precision);
  Run run_together(const std::string& name, bool kills);
  void follow(const std::vector<std::string>& command, Run& run, bool kills);
  void print_result(const Run& run) const;
  // Says what it found; returns a word for the table: "yes", "NO" or "not killed".
  std::string compare(const Run& undisturbed, const Run& killed) const;
  Row row_of(const Run& run) const;

  Options options_;
  int64_t processes_;  // of the runs under `accelerant launch`
  PrecisionChoice choice_;
  int64_t pictures_ = 0;  // to train on
  int64_t updates_ = 0;   // of a training
  TemporaryFolder folder_;
  int runs_ = 0;
};

bool Director::run() {
  introduce();
  std::vector<Run> runs;
  runs.push_back(run_alone("plain", Precision::no));
  runs.push_back(run_alone("accelerant", Precision::no));
  if (choice_.precision != Precision::no) {
    runs.push_back(run_alone("accelerant", choice_.precision));
    // Of a small network the products may be the lesser part.
    const bool is_faster = runs.back().log.seconds() < runs[runs.size() - 2].log.seconds();
    if (!is_faster && !options_.precision) choice_.precision = Precision::no;
  }
  const std::string name = "Accelerant, " + full_name(choice_.precision) +
                           (processes_ == 2 ? ", two processes" : ", launched");
  runs.push_back(run_together(name, /*kills=*/false));
  if (device_of(options_).is_cpu() &&
      runs.back().log.seconds() > runs[runs.size() - 2].log.seconds()) {
    print_wrapped("   ", "One process already used every core, so two are no faster here.");
  }
  runs.push_back(run_together("The same, one process killed", /*kills=*/true));
  const Run& undisturbed = runs[runs.size() - 2];
  const std::string equal = compare(undisturbed, runs.back());

  std::vector<Row> rows;
  for (const Run& run : runs) rows.push_back(row_of(run));
  rows.back().equal = equal;
  std::printf("\n");
  print_table(rows, runs_ - 1);
  return equal != "NO";
}

void Director::introduce() {
  const torch::Device device = device_of(options_);
  if (options_.epochs == 0) options_.epochs = device.is_cuda() ? 5 : 1;
  const auto data = examples::load_fashion_mnist(options_.data);
  pictures_ = data.train.labels.size(0);
  if (options_.limit > 0) pictures_ = std::min(pictures_, options_.limit);
  updates_ = count_updates(options_, pictures_);
  choice_ = choose_precision(device, options_.precision);
  const std::string cores = std::to_string(torch::get_num_threads());

  print_title("Accelerant " ACCELERANT_VERSION " on " +
              (device.is_cuda() ? "a GPU" : cpu_name() + ", " + cores + " threads"));
  print_wrapped("   data       ", "Fashion-MNIST, " + with_thousands(pictures_) +
                                      " pictures to train on, " +
                                      with_thousands(data.test.labels.size(0)) + " to test");
  const std::string width = std::to_string(options_.width);
  print_wrapped("   training   ", "layers of 784, " + width + ", " + width + " and 10 units, " +
                                      std::to_string(options_.epochs) +
                                      (options_.epochs == 1 ? " epoch" : " epochs") +
                                      " in batches of " + std::to_string(options_.batch_size));
  print_wrapped("   precision  ", full_name(choice_.precision) + ": " + choice_.reason);
  const LineDifference change = difference_between_loops();
  print_wrapped("   change     ", std::to_string(change.removed) + " of " +
                                      std::to_string(change.lines) + " lines removed, " +
                                      std::to_string(change.added) +
                                      " added (examples/demo/*_loop.cpp)");
  std::printf("\n");
}

Director::Run Director::run_alone(const std::string& loop, Precision precision) {
  const std::string library = loop == "plain" ? "Plain libtorch, " : "Accelerant, ";
  Run run{.name = library + full_name(precision), .log = RunLog(1)};
  print_title(std::to_string(++runs_) + ". " + run.name);
  Options options = options_;
  options.train = loop;
  options.precision = precision;
  std::vector<std::string> command = arguments_for(options);
  command.insert(command.begin(), this_program());
  follow(command, run, /*kills=*/false);
  print_result(run);
  return run;
}

Director::Run Director::run_together(const std::string& name, bool kills) {
  Run run{.name = name,
          .log = RunLog(processes_),
          .project = folder_.path() + (kills ? "/killed" : "/undisturbed")};
  print_title(std::to_string(++runs_) + ". " + run.name);
  Options options = options_;
  options.train = "accelerant";
  options.precision = choice_.precision;
  options.project = run.project;
  std::vector<std::string> command = {launcher(), "launch", "--num-processes",
                                      std::to_string(processes_)};
  if (kills) command.insert(command.end(), {"--max-restarts", "1"});
  std::string shown = "   $ accelerant";
  for (std::size_t i = 1; i < command.size(); ++i) shown += " " + command[i];
  std::printf("%s accelerant-demo ...\n", shown.c_str());
  std::fflush(stdout);

  command.push_back(this_program());
  for (const std::string& argument : arguments_for(options)) command.push_back(argument);
  follow(command, run, kills);
  print_result(run);
  return run;
}

// Runs a training to its end. Kills one of its processes on the way, if asked to.
void Director::follow(const std::vector<std::string>& command, Run& run, bool kills) {
  ChildProcess child(command);
  Progress progress(updates_);
  std::deque<std::string> other_lines;
  const auto killed_rank = static_cast<std::size_t>(processes_ - 1);
  bool has_killed = false;
  while (const auto line = child.next_line()) {
    if (!run.log.take(*line)) {
      if (line->starts_with("[accelerant] restart")) {
        progress.hide();
        print_wrapped("   ", *line);
      }
      other_lines.push_back(*line);
      if (other_lines.size() > lines_kept) other_lines.pop_front();
      continue;
    }
    progress.show(run.log);
    if (!kills || has_killed || !has_checkpoint(run.project)) continue;
    const RunLog::Rank& victim = run.log.rank(killed_rank);
    if (victim.pid == 0 || victim.updates <= updates_ * 2 / 3) continue;
    kill(victim.pid, SIGKILL);
    has_killed = true;
    progress.hide();
    std::printf("   $ kill -9 %d    # rank %zu, after update %ld of %ld\n", victim.pid, killed_rank,
                victim.updates, updates_);
    std::fflush(stdout);
  }
  const int code = child.exit_code();
  progress.hide();
  if (code != 0) {
    std::string message = "The training ended with exit code " + std::to_string(code) + ":";
    for (const std::string& line : other_lines) message += "\n  " + line;
    throw std::runtime_error(message);
  }
}

void Director::print_result(const Run& run) const {
  const Row row = row_of(run);
  std::printf("   %s samples/s, test accuracy %.2f %%\n",
              with_thousands(std::llround(row.samples_per_second)).c_str(), 100 * row.accuracy);
  std::fflush(stdout);
}

std::string Director::compare(const Run& undisturbed, const Run& killed) const {
  const RunLog::Rank& rank = killed.log.rank(0);
  if (rank.starts < 2) {
    print_wrapped("   ", "It ended before it could be killed; try more --epochs.");
    return "not killed";
  }
  const bool equal_losses =
      undisturbed.log.is_complete(updates_) && killed.log.has_the_losses_of(undisturbed.log);
  const std::string weights = content_of(undisturbed.project + "/model/model.safetensors");
  const bool equal_weights =
      !weights.empty() && weights == content_of(killed.project + "/model/model.safetensors");
  const auto verdict = [](bool equal) { return equal ? "are equal, bit for bit" : "DIFFER"; };
  print_wrapped("   ", "It resumed after update " + std::to_string(rank.started_after) +
                           " and repeated " + std::to_string(rank.computed_twice) +
                           " updates. Compared with run " + std::to_string(runs_ - 1) +
                           ", the losses of all " + std::to_string(updates_) + " updates " +
                           verdict(equal_losses) + "; the final weights " + verdict(equal_weights) +
                           ".");
  return equal_losses && equal_weights ? "yes" : "NO";
}

Row Director::row_of(const Run& run) const {
  const auto samples = static_cast<double>(options_.epochs * pictures_);
  return {.name = run.name,
          .samples_per_second = samples / run.log.seconds(),
          .accuracy = run.log.accuracy()};
}

}  // namespace

bool direct(Options options) {
  const auto start = std::chrono::steady_clock::now();
  const bool fine = Director(std::move(options)).run();
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  std::printf("\nTook %.0f s. Where to read on:\n", time.count());
  std::printf("   examples/demo/accelerant_loop.cpp   the loop that ran, from run 2 on\n");
  std::printf("   examples/train_complete.cpp         a whole program to start from\n");
  std::printf("   docs/quick_start.md                 each piece of it, explained\n");
  std::printf("   docs/checkpoints.md                 how a run resumes to the last bit\n");
  return fine;
}

}  // namespace demo
