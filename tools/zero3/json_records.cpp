#include "json_records.h"

#include <cmath>

#include <fmt/format.h>

namespace zero3::program {

Json to_json(const MemoryByTag& bytes) {
  Json json;
  for (std::size_t i = 0; i < kMemoryTagCount; ++i) {
    json[std::string(name_of(static_cast<MemoryTag>(i)))] = bytes.bytes[i].count();
  }
  return json;
}

Json to_json(const CommCounters& counters) {
  Json json;
  for (const CollectiveOp op :
       {CollectiveOp::kAllGather, CollectiveOp::kReduceScatter, CollectiveOp::kAllReduce}) {
    json[std::string(name_of(op))] = {{"count", counters[op].count},
                                      {"bytes", counters[op].bytes.count()}};
  }
  return json;
}

Json to_json(const trainer::StepRecord& record) {
  Json json = {{"step", record.step},
               {"loss", record.loss},
               {"grad_norm", record.grad_norm},
               {"learning_rate", record.learning_rate},
               {"tokens", record.tokens},
               {"tokens_per_s", one_decimal(record.tokens_per_s)},
               {"step_ms", one_decimal(record.step_ms)}};
  if (record.val_loss) json["val_loss"] = *record.val_loss;
  if (!record.skipped.empty()) json["skipped"] = record.skipped;
  return json;
}

Json to_json(const trainer::DoneRecord& record) {
  Json json = {{"done", true}, {"steps", record.steps}};
  if (record.val_loss) json["val_loss"] = *record.val_loss;
  json["weights_checksum"] = fmt::format("{:016x}", record.weights_checksum);
  json["peak_rss_mib"] = mebibytes(record.peak_rss);
  json["peak_bytes"] = to_json(record.peak);
  json["planned_bytes"] = to_json(record.planned);
  if (record.planned_host_checkpoints.count() > 0) {
    json["peak_bytes"]["host_checkpoints"] = record.host_checkpoints.count();
    json["planned_bytes"]["host_checkpoints"] = record.planned_host_checkpoints.count();
  }
  json["comm"] = to_json(record.comm);
  json["offloaded_bytes"] = {{"to_host", record.offload.to_host.count()},
                             {"to_disk", record.offload.to_disk.count()}};
  json["offload_ms"] = {{"moving", one_decimal(record.offload.moving_seconds * 1e3)},
                        {"waited", one_decimal(record.offload.waited_seconds * 1e3)}};
  json["tiles"] = record.tiles;
  return json;
}

double one_decimal(double value) {
  return std::round(value * 10) / 10;
}

double two_decimals(double value) {
  return std::round(value * 100) / 100;
}

std::int64_t mebibytes(Bytes bytes) {
  return static_cast<std::int64_t>(std::round(static_cast<double>(bytes.count()) * 0x1p-20));
}

}  // namespace zero3::program
