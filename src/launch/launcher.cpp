#include "launch/launcher.h"

#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "accelerant/core/error.h"
#include "core/files.h"
#include "core/texts.h"
#include "launch/console.h"
#include "launch/guardian.h"
#include "launch/launch_output.h"
#include "launch/launch_plan.h"
#include "launch/rank_group.h"
#include "launch/report.h"
#include "launch/run_folder.h"
#include "launch/signal_watch.h"
#include "meet/secret.h"

namespace accelerant::launch {
namespace {

std::chrono::milliseconds to_milliseconds(std::chrono::duration<double> time) {
  constexpr double kMost = 1e9;  // 11 days; poll counts in an int
  return std::chrono::milliseconds(
      static_cast<int64_t>(std::clamp(time.count() * 1000, 1.0, kMost)));
}

// While it lives, what ranks leave behind becomes a child of this process.
class OrphanAdoption {
 public:
  OrphanAdoption() {
    ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~OrphanAdoption() { ::prctl(PR_SET_CHILD_SUBREAPER, before_); }
  OrphanAdoption(const OrphanAdoption&) = delete;
  OrphanAdoption& operator=(const OrphanAdoption&) = delete;

 private:
  int before_ = 0;
};

class Launch {
 public:
  explicit Launch(const LaunchOptions& options)
      : options_(options),
        plan_(make_plan(options)),
        makes_secrets_(plan_.secret_file.empty() && plan_.num_machines == 1),
        port_(bind_port_of(plan_)),
        folder_(options, plan_) {}

  LaunchResult run() {
    const OrphanAdoption adoption;
    // Removed even if the launcher is killed. With logs it is a folder of its own, for the secret.
    Guardian guardian(makes_secrets_ ? folder_.private_folder() : folder_.temporary_path());
    SignalWatch signals;
    group_options_ = {.grace = to_milliseconds(options_.grace),
                      .saving_grace = to_milliseconds(options_.saving_grace),
                      .monitor_interval = to_milliseconds(options_.monitor_interval),
                      .timeout = {},
                      .notice_after = options_.notice_after
                                          ? std::optional(to_milliseconds(*options_.notice_after))
                                          : std::nullopt,
                      .on_still_running =
                          [this](const auto& ended, const auto& running) {
                            say(describe_still_running(ended, running, *options_.notice_after));
                          },
                      .signals = &signals,
                      .guardian = &guardian};
    say(folder_.announcement());
    RankGroupResult attempt = run_attempt();
    // Ranks that were asked to stop are not started again.
    while (attempt.signal == 0 && root_cause(attempt.ranks) &&
           describe_preempted(attempt.ranks).empty() && result_.restarts < options_.max_restarts) {
      ++result_.restarts;
      say(describe_restart(attempt));
      port_ = bind_port_of(plan_);
      attempt = run_attempt();
    }
    conclude(attempt);
    result_.ranks = std::move(attempt.ranks);
    console_.out.write_pending();
    console_.flush(signals);  // the report comes after everything that ranks wrote
    say(result_.report);
    console_.flush(signals);
    return std::move(result_);
  }

 private:
  RankGroupResult run_attempt() {
    std::optional<TemporaryFolder> replacement;
    std::string folder;
    std::optional<LaunchOutput> opened;
    try {
      folder = folder_.of_attempt(result_.restarts);
      open_output(opened, plan_, folder);
    } catch (const Error& error) {
      if (result_.restarts == 0) throw;
      // A full disk must not end the training. Without log files all output is shown.
      say(std::string(error.what()) + "\nthis attempt has no log files");
      LaunchPlan without_logs = plan_;
      without_logs.tee = {};
      without_logs.redirect = {};
      folder = replacement.emplace().path();
      open_output(opened, without_logs, folder);
    }
    has_logs_ = folder_.has_logs() && !replacement;
    LaunchOutput& output = *opened;
    if (makes_secrets_) renew_secret();
    auto starts = plan_ranks(options_, plan_, std::exchange(port_, {}), result_.restarts, folder);
    for (size_t i = 0; i < starts.size(); ++i) {
      starts[i].command.out_terminal = output.terminal_of(i, Stream::out);
      starts[i].command.err_terminal = output.terminal_of(i, Stream::err);
    }
    RankGroupResult attempt = run_rank_group(std::move(starts), output, group_options_);
    output.finish(attempt.ranks);
    console_.write_pending();
    if (!output.are_logs_complete()) say("some log files in " + folder + " are not complete");
    return attempt;
  }

  // The secret of an earlier attempt is still good if a new one cannot be written: a full disk must
  // not end the training.
  void renew_secret() {
    std::string path;
    try {
      path = folder_.private_folder() + "/secret_" + std::to_string(result_.restarts);
      meet::Secret::random().write(path);
    } catch (const Error&) {
      if (!path_exists(plan_.secret_file)) throw;
      return;
    }
    if (!plan_.secret_file.empty()) remove_file(plan_.secret_file);
    plan_.secret_file = path;
  }

  void open_output(std::optional<LaunchOutput>& output, const LaunchPlan& plan,
                   const std::string& folder) {
    make_rank_folders(plan, folder);
    output.emplace(console_, plan, folder, [this](const std::string& text) { say(text); });
  }

  std::string describe_restart(const RankGroupResult& attempt) const {
    const RankResult& cause = attempt.ranks[*root_cause(attempt.ranks)];
    const std::string reason = describe_reason(cause);
    return "restart " + std::to_string(result_.restarts) + " of " +
           std::to_string(options_.max_restarts) + ": " + describe(attempt) +
           (reason.empty() ? "" : "; " + reason) + "\n" + indented(rest_of_error(cause), "  ");
  }

  std::string describe(const RankGroupResult& attempt) const {
    return describe_failure(attempt.ranks, *root_cause(attempt.ranks), plan_.world_size());
  }

  void conclude(const RankGroupResult& attempt) {
    result_.signal = attempt.signal;
    const std::string saved = describe_preempted(attempt.ranks);
    if (were_preempted(attempt.ranks)) {
      result_.exit_code = kPreemptedExitCode;
      result_.report =
          "stopped on request: " + saved + "\n" + indented(describe_early_ends(attempt.ranks), "");
      return;
    }
    if (attempt.signal != 0) {
      result_.exit_code = 128 + attempt.signal;
      result_.report = "stopped by " + signal_name(attempt.signal) + killed(attempt) + "\n" +
                       indented(saved, "") + indented(describe_early_ends(attempt.ranks), "");
      return;
    }
    const auto cause = root_cause(attempt.ranks);
    if (!cause && saved.empty()) return;
    if (!cause) {  // some ranks did not end when the others did, and had to be stopped
      const auto late = std::ranges::find_if(attempt.ranks, [](const RankResult& rank) {
        return rank.exit_code != 0 && !rank.preempted();
      });
      result_.exit_code = late->exit_code;
      result_.report = saved + ", but rank " + std::to_string(late->rank) +
                       " did not end and had to be stopped: " + describe_end(*late) + "\n";
      return;
    }
    const RankResult& rank = attempt.ranks[*cause];
    result_.exit_code = rank.exit_code;
    result_.report = describe(attempt);
    if (options_.max_restarts > 0) {
      result_.report += "; this was restart " + std::to_string(result_.restarts) + " of " +
                        std::to_string(options_.max_restarts);
    }
    result_.report += "\n" + indented(saved, "") + indented(describe_early_ends(attempt.ranks), "");
    if (has_logs_) {
      result_.report += "log files: " + folder_.of_attempt(result_.restarts) + "\n";
    }
    if (const std::string lines = without_error(rank.err, rank); !lines.empty()) {
      result_.report += "the last lines of its standard error:\n" + indented(lines, "  | ");
    }
    // At the end, where eyes go first: the cause and what to do about it.
    if (rank.error) {
      result_.report += "its error:\n" + indented(describe_error(rank), "  ");
    }
    result_.report += indented(describe_advice(rank), "what to do: ");
  }

  static std::string killed(const RankGroupResult& attempt) {
    const auto count = std::ranges::count(attempt.ranks, SIGKILL, &RankResult::signal);
    if (count == 0) return "";
    return "; " + std::to_string(count) + (count == 1 ? " rank" : " ranks") +
           " did not end in time and had to be killed";
  }

  void say(const std::string& text) {
    if (options_.quiet || text.empty()) return;
    if (console_.err.is_inside_line()) console_.err.add("\n");
    console_.err.add_lines(indented(text, "[accelerant] "));
    console_.write_pending();
  }

  const LaunchOptions& options_;
  LaunchPlan plan_;
  const bool makes_secrets_;  // all ranks are on this machine, and the user has not named a secret
  std::optional<MasterPort> port_;
  RunFolder folder_;
  bool has_logs_ = false;  // of this attempt
  Console console_;
  RankGroupOptions group_options_;
  LaunchResult result_;
};

}  // namespace

LaunchResult launch(const LaunchOptions& options) { return Launch(options).run(); }

}  // namespace accelerant::launch
