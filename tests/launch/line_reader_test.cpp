#include "launch/line_reader.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace accelerant::launch {
namespace {

using Events = std::vector<std::string>;

class Recorder : public LineReader::Handler {
 public:
  void take_line(std::string_view text, bool was_bar) override {
    events.push_back((was_bar ? "last state: " : "line: ") + std::string(text));
  }
  void take_bar(std::string_view text) override { events.push_back("bar: " + std::string(text)); }
  void end_bar() override { events.emplace_back("end"); }
  void remove_bar() override { events.emplace_back("remove"); }

  Events events;
};

Events read(const std::vector<std::string>& parts, bool is_live) {
  Recorder recorder;
  LineReader reader(recorder, is_live);
  for (const std::string& part : parts) reader.receive(part);
  reader.finish();
  return recorder.events;
}

TEST(LineReader, DividesIntoLines) {
  for (const bool is_live : {false, true}) {
    EXPECT_EQ(read({"one\ntw", "o\n\nthree"}, is_live),
              (Events{"line: one", "line: two", "line: ", "line: three"}));
    EXPECT_EQ(read({"a\r", "\nb\r\n"}, is_live).back(), "line: b\r");
  }
  EXPECT_EQ(read({"a\r", "\n"}, false), (Events{"line: a\r"}));
}

TEST(LineReader, TellsStatesThatAreOverwritten) {
  EXPECT_EQ(read({"\r10%\r20", "%\r\n"}, false), (Events{"bar: 10%", "last state: 20%\r"}));
  EXPECT_EQ(read({"10%\r20%\r"}, false), (Events{"bar: 10%", "last state: 20%"}));
}

TEST(LineReader, OnATerminalEveryStateIsToldAtOnce) {
  Recorder recorder;
  LineReader reader(recorder, true);
  reader.receive("\r10%\x1b[K");
  EXPECT_EQ(recorder.events, (Events{"bar: 10%"}));
  reader.receive("\r20%");  // from another program: may be incomplete
  EXPECT_EQ(recorder.events.back(), "bar: 20%");
  reader.receive("\n");
  EXPECT_EQ(recorder.events.back(), "last state: 20%");
}

TEST(LineReader, LinesWhileABarIsOpenAreLines) {
  EXPECT_EQ(read({"\r10%\x1b[K", "a warning\n", "\r\x1b[Kmessage\n\r20%\x1b[K", "\n"}, true),
            (Events{"bar: 10%", "line: a warning", "remove", "line: message", "bar: 20%", "end"}));
}

TEST(LineReader, EndsABarThatIsLeftOpen) {
  EXPECT_EQ(read({"\r10%\x1b[K"}, true), (Events{"bar: 10%", "end"}));
}

TEST(LineReader, ErasingInsideAnOrdinaryLineIsPartOfIt) {
  EXPECT_EQ(read({"\x1b[31m\x1b[Kerror\x1b[m\n"}, true),
            (Events{"line: \x1b[31m\x1b[Kerror\x1b[m"}));
}

TEST(LineReader, DoesNotCutSequences) {
  EXPECT_EQ(read({"\r10%\x1b", "[K\n"}, true), (Events{"bar: 10%", "bar: 10%", "end"}));
}

}  // namespace
}  // namespace accelerant::launch
