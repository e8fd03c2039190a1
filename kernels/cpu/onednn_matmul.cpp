#include "cpu/onednn_matmul.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <zero3/internal/cpu_stream.h>

#include "cpu/parallel.h"

namespace zero3::cpu {
namespace {

using Layout = dnnl::memory::desc;

dnnl::memory::data_type type_of(DType dtype) {
  return dtype == DType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

Layout layout(std::int64_t rows, std::int64_t cols, const Operand& operand) {
  const dnnl::memory::dims strides = operand.order == Order::kRows
                                         ? dnnl::memory::dims{operand.stride, 1}
                                         : dnnl::memory::dims{1, operand.stride};
  return {{rows, cols}, type_of(operand.dtype), strides};
}

// Null where oneDNN has no kernel: it reports that by an exception.
std::optional<dnnl::matmul::primitive_desc> describe(const Product& p, const dnnl::engine& engine) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (p.into == Into::kAccumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
  const Layout a = layout(p.rows, p.depth, p.a);
  const Layout b = layout(p.depth, p.cols, p.b);
  const Layout c({p.rows, p.cols}, type_of(p.c_dtype), dnnl::memory::dims{p.cols, 1});
  const Layout bias({1, p.cols}, type_of(p.bias_dtype), dnnl::memory::dims{p.cols, 1});
  try {
    const dnnl::matmul::desc product =
        p.bias != nullptr ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
    return dnnl::matmul::primitive_desc(product, attributes, engine);
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented) throw;
    return std::nullopt;
  }
}

const std::byte* at(const Operand& operand, std::int64_t line) {
  return static_cast<const std::byte*>(operand.data) +
         line * operand.stride * size_of(operand.dtype);
}

// The product of one granule: rows [row, row + row_granule) or depth [k, k + depth_granule),
// whichever is walked.
Product granule_of(const Product& p, std::int64_t row, std::int64_t k) {
  Product granule = p;
  granule.rows = std::min(p.row_granule, p.rows - row);
  granule.depth = std::min(p.depth_granule, p.depth - k);
  // A walk along the rows steps over rows of a; one along the depth over lines of both, which lie
  // along it.
  granule.a.data = at(p.a, p.a.order == Order::kRows ? row : k);
  granule.b.data = at(p.b, k);
  granule.c = static_cast<std::byte*>(p.c) + row * p.cols * size_of(p.c_dtype);
  return granule;
}

dnnl::memory without_data(const Layout& of, const dnnl::engine& engine) {
  return {of, engine, DNNL_MEMORY_NONE};
}

// oneDNN takes inputs without const.
void* writable(const void* data) {
  return const_cast<void*>(data);
}

}  // namespace

struct OneDnnMatmul::Prepared {
  Prepared(const dnnl::matmul::primitive_desc& description, const dnnl::engine& engine)
      : primitive(description),
        a(without_data(description.src_desc(), engine)),
        b(without_data(description.weights_desc(), engine)),
        c(without_data(description.dst_desc(), engine)),
        bias(without_data(description.bias_desc(), engine)),
        scratch(without_data(description.scratchpad_desc(), engine)),
        arguments{{DNNL_ARG_SRC, a},
                  {DNNL_ARG_WEIGHTS, b},
                  {DNNL_ARG_DST, c},
                  {DNNL_ARG_SCRATCHPAD, scratch}} {
    if (description.bias_desc().get_size() > 0) arguments.emplace(DNNL_ARG_BIAS, bias);
  }

  void run(const Product& granule, std::byte* scratch_data, const dnnl::stream& stream) {
    a.set_data_handle(writable(granule.a.data));
    b.set_data_handle(writable(granule.b.data));
    c.set_data_handle(granule.c);
    if (granule.bias != nullptr) bias.set_data_handle(writable(granule.bias));
    scratch.set_data_handle(scratch_data);
    primitive.execute(stream, arguments);
  }

  dnnl::matmul primitive;
  dnnl::memory a, b, c, bias, scratch;
  std::unordered_map<int, dnnl::memory> arguments;
};

OneDnnMatmul::OneDnnMatmul() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {}

bool OneDnnMatmul::preferred(DType dtype) {
  if (dtype != DType::kBF16) return false;
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx512_core_bf16:
    case dnnl::cpu_isa::avx512_core_amx:
      return true;
    default:
      return false;
  }
}

Bytes OneDnnMatmul::workspace_bytes(const Product& product, int threads) {
  // Layers ask at every call, and oneDNN takes ten microseconds and more to describe a product.
  static std::mutex mutex;
  static std::map<Key, Bytes> known;
  const Product granule = granule_of(product, 0, 0);
  const Key key = key_of(granule, threads);
  const std::scoped_lock lock(mutex);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  const LibraryThreads scope(threads);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto description = describe(granule, engine);
  const Bytes bytes(
      description ? static_cast<std::int64_t>(description->scratchpad_desc().get_size()) : 0);
  return known.emplace(key, bytes).first->second;
}

OneDnnMatmul::Key OneDnnMatmul::key_of(const Product& granule, int threads) {
  return {granule.rows,
          granule.cols,
          granule.depth,
          granule.a.order,
          granule.b.order,
          granule.a.dtype,
          granule.c_dtype,
          granule.bias_dtype,
          granule.bias != nullptr,
          granule.into,
          threads};
}

OneDnnMatmul::Prepared* OneDnnMatmul::prepare(const Product& granule, int threads) {
  const Key key = key_of(granule, threads);
  const auto found = prepared_.find(key);
  if (found != prepared_.end()) return found->second.get();
  const auto description = describe(granule, engine_);
  auto made = description ? std::make_shared<Prepared>(*description, engine_) : nullptr;
  return prepared_.emplace(key, std::move(made)).first->second.get();
}

bool OneDnnMatmul::multiply(const Product& product, std::span<std::byte> scratch) {
  const int threads = internal::current_threads();
  // A primitive has to run on as many threads as it was made for.
  const LibraryThreads scope(threads);
  const auto last = [](std::int64_t size, std::int64_t granule) {
    return (size - 1) / granule * granule;
  };
  Prepared* whole = prepare(granule_of(product, 0, 0), threads);
  Prepared* rest = prepare(granule_of(product, last(product.rows, product.row_granule),
                                      last(product.depth, product.depth_granule)),
                           threads);
  for (const Prepared* prepared : {whole, rest}) {
    if (prepared == nullptr || prepared->scratch.get_desc().get_size() > scratch.size())
      return false;
  }
  for (std::int64_t row = 0; row < product.rows; row += product.row_granule) {
    for (std::int64_t k = 0; k < product.depth; k += product.depth_granule) {
      const bool full =
          row + product.row_granule <= product.rows && k + product.depth_granule <= product.depth;
      (full ? whole : rest)->run(granule_of(product, row, k), scratch.data(), stream_);
    }
  }
  stream_.wait();
  return true;
}

}  // namespace zero3::cpu
