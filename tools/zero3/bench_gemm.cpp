#include <algorithm>
#include <memory>
#include <vector>

#include "bench_commands.h"
#include "flags.h"
#include "json_records.h"
#include "line_writer.h"
#include "matrix_peak.h"
#include "place.h"

namespace zero3::program {
namespace {

struct GemmFlags {
  std::string model = "30m";
  std::int64_t rows = 1024;
  DType dtype = DType::kF32;
  PlaceFlags place;
};

struct NamedProduct {
  const char* name;
  LinearShape shape;
};

std::vector<NamedProduct> products_of(const trainer::LlamaConfig& config, std::int64_t rows) {
  // Logits are computed in blocks of rows, so that they are never all in memory.
  const std::int64_t head_rows = std::min(rows, kDefaultGranuleRows);
  return {{"query", {rows, config.hidden, config.query_width()}},
          {"key", {rows, config.hidden, config.kv_width()}},
          {"attention output", {rows, config.query_width(), config.hidden}},
          {"mlp up", {rows, config.hidden, config.intermediate}},
          {"mlp down", {rows, config.intermediate, config.hidden}},
          {"head", {head_rows, config.hidden, config.vocab}}};
}

void run(const GemmFlags& flags, const trainer::LlamaConfig& config, const Place& place) {
  constexpr double kSeconds = 0.3;
  constexpr std::pair<const char*, GemmOp> kOps[] = {{"forward", GemmOp::kForward},
                                                     {"backward_input", GemmOp::kBackwardInput},
                                                     {"backward_weight", GemmOp::kBackwardWeight}};
  LineWriter out("output", "-");
  for (const NamedProduct& product : products_of(config, flags.rows)) {
    for (const auto& [name, op] : kOps) {
      const double flops = measure_gemm(op, product.shape, flags.dtype, place.run, kSeconds);
      out.write_line(Json{{"bench", "gemm"},
                          {"product", product.name},
                          {"op", name},
                          {"dtype", name_of(flags.dtype)},
                          {"rows", product.shape.rows},
                          {"in", product.shape.in},
                          {"out", product.shape.out},
                          {"threads", place.run.threads},
                          {"gflops", one_decimal(flops * 1e-9)}}
                         .dump());
    }
  }
}

}  // namespace

Command add_bench_gemm(CLI::App& bench) {
  CLI::App* app =
      add_command(bench, "gemm", "Matrix products of a model's layers, a JSON line for each");
  auto flags = std::make_shared<GemmFlags>();
  begin_group(*app, "Products");
  add_text(*app, {"--model", "NAME|DIR", "whose layers"}, flags->model);
  add_count(*app, {"--rows", "N", "tokens"}, flags->rows, 1, std::int64_t{1} << 24);
  add_choice(*app, {"--dtype", "", "of operands"}, flags->dtype,
             {{"fp32", DType::kF32}, {"bf16", DType::kBF16}});
  add_device_flags(*app, flags->place);
  return {app, [flags]() -> std::function<void()> {
            const trainer::LlamaConfig config = trainer::resolve_config(flags->model);
            return [flags, config, place = planned_place(flags->place)] {
              run(*flags, config, place);
            };
          }};
}

}  // namespace zero3::program
