// Divides what a rank writes into lines and states of a progress bar.
#pragma once

#include <string>
#include <string_view>

namespace accelerant::launch {

// A line ends with "\n". What ends with a "\r", or follows one, is a state of a bar that the next
// state overwrites; "\r\n" only ends a line. Whether a "\r" is one of those shows with the byte
// after it.
//
// Of a rank whose output is shown on a terminal (`is_live`), two things more are known. "\x1b[K",
// which erases the rest of a line, ends a state, as our own ProgressBar writes it; alone behind a
// "\r" it removes the bar. And a state is told as soon as its bytes are there, not when the next
// one begins.
class LineReader {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;

    // A line without its "\n". `was_bar`: states of a bar came before it in the same line.
    virtual void take_line(std::string_view text, bool was_bar) = 0;
    // A state of a bar, without "\r" and "\x1b[K".
    virtual void take_bar(std::string_view text) = 0;
    // The bar stays as it is, and a new line begins below it.
    virtual void end_bar() = 0;
    virtual void remove_bar() = 0;
  };

  LineReader(Handler& handler, bool is_live) : handler_(handler), is_live_(is_live) {}

  void receive(std::string_view bytes);
  // What is left counts as a line. An open bar is ended.
  void finish();

 private:
  void take_newline();
  void take_return();
  void take_erase();
  void tell_unfinished_state();
  void clear_line();

  Handler& handler_;
  bool is_live_;
  std::string line_;           // since the last end of a line or of a state
  bool after_return_ = false;  // line_ began behind a "\r"
  bool was_told_ = false;      // line_ was told as a state
  bool bar_is_open_ = false;   // a state was told, and the bar has not been ended since
};

}  // namespace accelerant::launch
