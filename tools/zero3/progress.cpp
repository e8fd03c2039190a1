#include "progress.h"

#include <utility>

#include <fmt/format.h>

#include <zero3/error.h>
#include <zero3/log.h>
#include <zero3/trainer/process_memory.h>
#include "json_records.h"

namespace zero3::program {
namespace {

/// Back to the first column, and the rest of the line cleared.
constexpr const char* kRewrite = "\r\x1b[K";

std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds);
  return whole >= 3600 ? fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
                       : fmt::format("{}:{:02}", whole / 60, whole % 60);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void JsonLines::on_step(const trainer::StepRecord& record) {
  write(to_json(record).dump());
}

void JsonLines::on_done(const trainer::DoneRecord& record) {
  write(to_json(record).dump());
}

void JsonLines::write(const std::string& line) {
  for (const auto& writer : writers_) writer->write_line(line);
}

TerminalProgress::TerminalProgress(RunTitle title, std::unique_ptr<LineWriter> out)
    : title_(std::move(title)), out_(std::move(out)), begin_(std::chrono::steady_clock::now()) {
  out_->write_line(title_.text);
}

std::string TerminalProgress::progress_line(const trainer::StepRecord& record) const {
  const double each = seconds_since(begin_) / static_cast<double>(record.step);
  const double flops = title_.flops_per_step / (record.step_ms * 1e-3);
  return fmt::format(
      "step {}/{}  loss {:.4f}  {:.0f} tokens/s  {:.0f} % of the matrix peak  {}  {} left",
      record.step, title_.steps, record.loss, record.tokens_per_s, 100 * flops / title_.peak_flops,
      concat(trainer::peak_resident_memory()),
      clock_text(each * static_cast<double>(title_.steps - record.step)));
}

void TerminalProgress::on_step(const trainer::StepRecord& record) {
  if (!record.skipped.empty()) {
    out_->write_line(fmt::format("{}step {}  skipped: {}", kRewrite, record.step, record.skipped));
  }
  if (record.val_loss) {
    out_->write_line(fmt::format("{}step {}  loss {:.4f}  validation loss {:.4f}", kRewrite,
                                 record.step, record.loss, *record.val_loss));
  }
  out_->write(kRewrite + progress_line(record));
}

void TerminalProgress::on_done(const trainer::DoneRecord& record) {
  out_->write_line(fmt::format("{}{} steps in {}; validation loss {}", kRewrite, record.steps,
                               clock_text(seconds_since(begin_)),
                               record.val_loss ? fmt::format("{:.4f}", *record.val_loss) : "none"));
  out_->write_line(
      fmt::format("weights {:016x}; device memory planned {}, peak {}; process peak {}",
                  record.weights_checksum, concat(record.planned.total()),
                  concat(record.peak.total()), concat(record.peak_rss)));
  const CommCounters& comm = record.comm;
  out_->write_line(fmt::format(
      "received from other ranks: {} in {} all-gathers, {} in {} reduce-scatters",
      concat(comm[CollectiveOp::kAllGather].bytes), comm[CollectiveOp::kAllGather].count,
      concat(comm[CollectiveOp::kReduceScatter].bytes), comm[CollectiveOp::kReduceScatter].count));
  if (const OffloadCounters& moved = record.offload; moved.moving_seconds > 0) {
    out_->write_line(fmt::format(
        "layer inputs: {} moved out and {} back in {:.1f} s, of which computing waited {:.1f} s",
        concat(moved.to_host + moved.to_disk), concat(moved.from_host + moved.from_disk),
        moved.moving_seconds, moved.waited_seconds));
  }
}

void BothSinks::on_remark(std::string_view remark) {
  Log().warn(remark);
}

void BothSinks::on_step(const trainer::StepRecord& record) {
  if (first_) first_->on_step(record);
  if (second_) second_->on_step(record);
}

void BothSinks::on_done(const trainer::DoneRecord& record) {
  if (first_) first_->on_done(record);
  if (second_) second_->on_done(record);
}

}  // namespace zero3::program
