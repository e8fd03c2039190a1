#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <zero3/trainer/train_loop.h>
#include "line_writer.h"

namespace zero3::program {

/// Records as JSON lines, to each of the writers.
class JsonLines final : public trainer::TrainSink {
 public:
  explicit JsonLines(std::vector<std::unique_ptr<LineWriter>> writers)
      : writers_(std::move(writers)) {}
  void on_step(const trainer::StepRecord& record) override;
  void on_done(const trainer::DoneRecord& record) override;

 private:
  void write(const std::string& line);

  std::vector<std::unique_ptr<LineWriter>> writers_;
};

/// What a terminal's reader is told besides the records.
struct RunTitle {
  std::string text;
  std::int64_t steps = 0;
  double flops_per_step = 0;
  /// What matrix products reach on this machine, in floating-point operations per second.
  double peak_flops = 0;
};

/// One line on a terminal that rewrites itself, a line for each evaluation, and a summary.
class TerminalProgress final : public trainer::TrainSink {
 public:
  TerminalProgress(RunTitle title, std::unique_ptr<LineWriter> out);
  void on_step(const trainer::StepRecord& record) override;
  void on_done(const trainer::DoneRecord& record) override;

 private:
  [[nodiscard]] std::string progress_line(const trainer::StepRecord& record) const;

  RunTitle title_;
  std::unique_ptr<LineWriter> out_;
  std::chrono::steady_clock::time_point begin_;
};

/// Gives every record to both, in order; either may be null. Remarks go to stderr.
class BothSinks final : public trainer::TrainSink {
 public:
  BothSinks(std::unique_ptr<trainer::TrainSink> first, std::unique_ptr<trainer::TrainSink> second)
      : first_(std::move(first)), second_(std::move(second)) {}
  void on_remark(std::string_view remark) override;
  void on_step(const trainer::StepRecord& record) override;
  void on_done(const trainer::DoneRecord& record) override;

 private:
  std::unique_ptr<trainer::TrainSink> first_, second_;
};

}  // namespace zero3::program
