#include "accelerant/data/detail/dispatch.h"

#include <c10/util/StringUtil.h>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "tensor/current_message.h"

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

[[noreturn]] void refuse_other_step(const MessageNumber& expected, const MessageNumber& got) {
  const auto text = [](const MessageNumber& number) {
    return c10::str("step ", number.step, " of loop ", number.loop);
  };
  throw Error(ErrorDetails{.problem = "The processes are at different steps of a loader",
                           .expected = c10::str(text(expected), " from rank 0, as in this process"),
                           .got = text(got),
                           .hint =
                               "all processes must run the same loops over a loader that rank 0 "
                               "reads for them, and leave them at the same step"});
}

}  // namespace

void refuse_to_dispatch() {
  throw Error(ErrorDetails{
      .problem = "The batches of this loader cannot be sent to other processes",
      .expected =
          "tensors, numbers, strings, standard containers, or default-constructible structs "
          "that name their fields (visit_fields, see tensor/nested.h)",
      .got = "a batch of another type",
      .hint = "let every process read its own batches (dispatch_batches = false)"});
}

PackWriter batch_message(const MessageNumber& number, int64_t units, int64_t samples) {
  PackWriter writer = message(Kind::batch, number);
  writer.number(units);
  writer.number(samples);
  return writer;
}

// --- Rank 0 --------------------------------------------------------------------------------------

BatchSender::BatchSender(std::shared_ptr<BatchLine> line, int64_t loop, int64_t num_processes)
    : line_(std::move(line)),
      number_{.loop = loop},
      at_end_(static_cast<std::size_t>(num_processes), false) {
  at_end_[0] = true;
}

// Waits until everything is received. Other ranks that leave the loop at the same step have already
// asked for it all. If this process ends, it must not withdraw what they are about to read.
BatchSender::~BatchSender() {
  try {
    line_->flush();
  } catch (...) {
    log(LogLevel::error,
        c10::str("Ending a loop over a loader failed: ", accelerant::detail::current_message()));
  }
}

void BatchSender::send(const std::vector<at::Tensor>& messages) {
  for (std::size_t rank = 1; rank < messages.size(); ++rank) {
    if (at_end_[rank]) continue;
    at_end_[rank] = !messages[rank].defined();
    line_->send(static_cast<int64_t>(rank),
                at_end_[rank] ? message(Kind::end, number_).finish() : messages[rank]);
  }
  ++number_.step;
}

void BatchSender::send_end() {
  send_to_rest([&] { return message(Kind::end, number_).finish(); });
}

void BatchSender::send_error() {
  send_to_rest([&, text = accelerant::detail::current_message()] {
    PackWriter writer = message(Kind::error, number_);
    writer.text(text);
    return writer.finish();
  });
}

void BatchSender::send_to_rest(const std::function<at::Tensor()>& make) {
  for (std::size_t rank = 1; rank < at_end_.size(); ++rank) {
    if (at_end_[rank]) continue;
    at_end_[rank] = true;
    line_->send(static_cast<int64_t>(rank), make());
  }
}

// --- Other ranks ---------------------------------------------------------------------------------

BatchReceiver::BatchReceiver(std::shared_ptr<BatchLine> line, int64_t loop)
    : line_(std::move(line)), expected_{.loop = loop} {}

std::optional<BatchReceiver::Message> BatchReceiver::receive() {
  for (;;) {
    PackReader content(line_->receive());
    const auto kind = content.number<Kind>();
    MessageNumber number;
    number.loop = content.number<int64_t>();
    number.step = content.number<int64_t>();
    if (number.loop < expected_.loop) continue;  // from a loop that this process left early
    if (number.loop != expected_.loop || number.step != expected_.step) {
      refuse_other_step(expected_, number);
    }
    ++expected_.step;
    if (kind == Kind::end) return std::nullopt;
    if (kind == Kind::error) {
      throw Error(
          c10::str("Rank 0, which reads the data for all processes, failed: ", content.text()));
    }
    const auto units = content.number<int64_t>();
    const auto samples = content.number<int64_t>();
    return Message{std::move(content), units, samples};
  }
}

}  // namespace accelerant::data::detail
