#include "accelerant/data/dispatch.h"

#include <c10/util/StringUtil.h>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"

namespace accelerant::data::detail {
namespace {

enum class Kind : int8_t { batch, end, error };

PackWriter message(Kind kind, const MessageNumber& number) {
  PackWriter writer;
  writer.number(kind);
  writer.number(number.loop);
  writer.number(number.step);
  return writer;
}

std::string text_of(const MessageNumber& number) {
  return c10::str("step ", number.step, " of loop ", number.loop);
}

// What another process says when it begins a loop, or why it gives one up.
struct Announcement {
  int64_t loader = 0;
  int64_t batch_size = 0;
  int64_t loop = 0;
  std::string refusal = {};

  bool is_same_loop(const Announcement& other) const {
    return loader == other.loader && batch_size == other.batch_size && loop == other.loop;
  }
};

Announcement announcement_of(const DispatchedLoop& loop, const std::string& refusal = "") {
  return {
      .loader = loop.loader, .batch_size = loop.batch_size, .loop = loop.loop, .refusal = refusal};
}

at::Tensor pack(const Announcement& announcement) {
  PackWriter writer;
  writer.number(announcement.loader);
  writer.number(announcement.batch_size);
  writer.number(announcement.loop);
  writer.text(announcement.refusal);
  return writer.finish();
}

Announcement unpack(const at::Tensor& message) {
  PackReader reader(message);
  Announcement announcement;
  announcement.loader = reader.number<int64_t>();
  announcement.batch_size = reader.number<int64_t>();
  announcement.loop = reader.number<int64_t>();
  announcement.refusal = reader.text();
  return announcement;
}

// What is wrong with the loops of all processes, by rank; empty if nothing is.
std::string difference_of(const std::vector<Announcement>& all) {
  std::string refusals;
  std::string loops;
  bool same = true;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Announcement& one = all[rank];
    if (!one.refusal.empty()) refusals += c10::str("\n  rank ", rank, ": ", one.refusal);
    same = same && one.is_same_loop(all[0]);
    loops += c10::str("\n  rank ", rank, ": loop ", one.loop, " over loader ", one.loader,
                      " (batch_size ", one.batch_size, ")");
  }
  if (!refusals.empty()) return "A process has given up a loop over a loader:" + refusals;
  if (same) return "";
  return Error(ErrorDetails{
                   .problem = "The processes are in loops over different loaders",
                   .expected = "the same loop in all, as rank 0 reads the batches for them",
                   .got = loops + "\n  ",
                   .hint = "loaders and loops are counted in the order in which they were prepared "
                           "and begun: prepare the same loaders in all processes, and loop over "
                           "them in the same order"})
      .what();
}

}  // namespace

void refuse_to_dispatch() {
  throw Error(ErrorDetails{
      .problem = "The batches of this loader cannot be sent to other processes",
      .expected =
          "tensors, numbers, strings, standard containers, or default-constructible structs "
          "that name their fields (visit_fields, see tensor/nested.h)",
      .got = "another type of batch",
      .hint = "let every process read its own batches (dispatch_batches = false)"});
}

PackWriter batch_message(const MessageNumber& number, int64_t units, int64_t samples) {
  PackWriter writer = message(Kind::batch, number);
  writer.number(units);
  writer.number(samples);
  return writer;
}

// --- Rank 0 ---------------------------------------------------------------------------------------

BatchSender::BatchSender(DispatchedLoop loop, int64_t num_processes)
    : loop_(std::move(loop)),
      number_{.loop = loop_.loop},
      at_end_(static_cast<std::size_t>(num_processes), false),
      is_elsewhere_(at_end_) {
  at_end_[0] = true;
}

// The others have asked for everything that was sent if they leave the loop at the same step. A process
// that goes on to its end must not take back what they are about to read.
BatchSender::~BatchSender() {
  try {
    meet();
    flush();
  } catch (...) {
    log(LogLevel::error, c10::str("The end of a loop over a loader: ", current_message()));
  }
}

void BatchSender::flush() {
  for (std::size_t rank = 1; rank < at_end_.size(); ++rank)
    if (!is_elsewhere_[rank]) loop_.line->flush(static_cast<int64_t>(rank));
}

void BatchSender::meet() {
  if (std::exchange(has_met_, true)) return;
  std::vector<Announcement> all = {announcement_of(loop_)};
  for (std::size_t rank = 1; rank < at_end_.size(); ++rank)
    all.push_back(unpack(loop_.channel->await_announcement(static_cast<int64_t>(rank))));
  const std::string difference = difference_of(all);
  if (difference.empty()) return;
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const bool was_at_end = at_end_[rank];
    at_end_[rank] = true;
    const bool same_loader = all[rank].loader == loop_.loader;
    // Who has given up, or sees by itself that the messages are of a later loop, takes no more of them.
    const bool is_told = !all[rank].refusal.empty() || (same_loader && all[rank].loop < loop_.loop);
    is_elsewhere_[rank] = is_told || !same_loader;
    if (is_told || (was_at_end && same_loader)) continue;
    PackWriter writer = message(Kind::error, {.loop = all[rank].loop, .step = -1});
    writer.text(difference);
    const auto line =
        same_loader ? loop_.line : std::shared_ptr(loop_.channel->open(all[rank].loader));
    line->send(static_cast<int64_t>(rank), writer.finish());
    line->flush(static_cast<int64_t>(rank));
  }
  throw Error(difference);
}

void BatchSender::send(const std::vector<at::Tensor>& messages) {
  if (number_.step > 0) meet();
  for (std::size_t rank = 1; rank < messages.size(); ++rank) {
    if (at_end_[rank]) continue;
    at_end_[rank] = !messages[rank].defined();
    loop_.line->send(static_cast<int64_t>(rank),
                     at_end_[rank] ? message(Kind::end, number_).finish() : messages[rank]);
  }
  ++number_.step;
}

void BatchSender::send_end() {
  if (number_.step > 0) meet();
  send_to_rest([&] { return message(Kind::end, number_).finish(); });
}

void BatchSender::send_error() {
  send_to_rest([&, text = current_message()] {
    PackWriter writer = message(Kind::error, number_);
    writer.text(c10::str("Rank 0, which reads the data for all processes, failed: ", text));
    return writer.finish();
  });
}

void BatchSender::send_to_rest(const std::function<at::Tensor()>& make) {
  for (std::size_t rank = 1; rank < at_end_.size(); ++rank) {
    if (at_end_[rank]) continue;
    at_end_[rank] = true;
    loop_.line->send(static_cast<int64_t>(rank), make());
  }
}

// --- The others -----------------------------------------------------------------------------------

BatchReceiver::BatchReceiver(DispatchedLoop loop)
    : loop_(std::move(loop)), expected_{.loop = loop_.loop} {
  loop_.channel->announce(pack(announcement_of(loop_)));
}

std::optional<BatchReceiver::Message> BatchReceiver::receive() {
  for (;;) {
    PackReader content(loop_.line->receive());
    const auto kind = content.number<Kind>();
    MessageNumber number;
    number.loop = content.number<int64_t>();
    number.step = content.number<int64_t>();
    if (number.loop < expected_.loop) continue;  // of a loop that this process left early
    const bool of_the_loop = number.loop == expected_.loop && number.step == -1;
    if (!of_the_loop && (number.loop != expected_.loop || number.step != expected_.step)) {
      const Error error(ErrorDetails{
          .problem = "The processes are at different places of a loader",
          .expected = c10::str(text_of(expected_), " from rank 0, as in this process"),
          .got = text_of(number),
          .hint = "all processes must run the same loops over a loader that rank 0 reads for them, "
                  "and leave them at the same step"});
      loop_.channel->announce(
          pack(announcement_of(loop_, error.what())));  // rank 0 should fail too
      throw error;
    }
    ++expected_.step;
    if (kind == Kind::end) return std::nullopt;
    if (kind == Kind::error) throw Error(content.text());
    const auto units = content.number<int64_t>();
    const auto samples = content.number<int64_t>();
    return Message{std::move(content), units, samples};
  }
}

}  // namespace accelerant::data::detail
