#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <zero3/error.h>
#include <zero3/internal/cpu_stream.h>
#include <zero3/trace.h>
#include "support/contains.h"
#include "support/thrown.h"

namespace zero3 {
namespace {

using nlohmann::json;
using test::contains;
using test::thrown;

/// Throws where the file is no valid JSON.
json written(const Trace& trace) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path path =
      std::filesystem::path(::testing::TempDir()) / concat(test->name(), '-', getpid(), ".json");
  trace.write_json(path);
  json parsed = json::parse(std::ifstream(path));
  std::filesystem::remove(path);
  return parsed;
}

std::vector<json> events_of(const json& parsed, const std::string& phase) {
  std::vector<json> found;
  for (const json& event : parsed.at("traceEvents")) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

TEST(Trace, WithoutSpansIsValidJson) {
  EXPECT_TRUE(written(Trace()).at("traceEvents").empty());
}

TEST(Trace, WritesNameProcessAndTimes) {
  Trace trace;
  trace.add({3, "compute", "gemm", 5'000, 7'500});
  const auto spans = events_of(written(trace), "X");
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].at("name"), "gemm");
  EXPECT_EQ(spans[0].at("pid"), 3);
  EXPECT_DOUBLE_EQ(spans[0].at("ts").get<double>(), 0.0);
  EXPECT_DOUBLE_EQ(spans[0].at("dur").get<double>(), 2.5);
}

TEST(Trace, StartsAtTheEarliestBegin) {
  Trace trace;
  trace.add({0, "a", "short", 6'000, 7'000});
  trace.add({0, "b", "long", 5'000, 8'000});
  const auto spans = events_of(written(trace), "X");
  EXPECT_DOUBLE_EQ(spans.at(0).at("ts").get<double>(), 1.0);
  EXPECT_DOUBLE_EQ(spans.at(1).at("ts").get<double>(), 0.0);
}

TEST(Trace, HasOneRowPerStream) {
  Trace trace;
  trace.add({0, "compute", "x", 0, 1, 1});
  trace.add({0, "gather", "y", 1, 2, 2});
  trace.add({0, "compute", "z", 2, 3, 1});
  trace.add({1, "compute", "x", 3, 4, 1});
  const auto parsed = written(trace);
  std::set<std::pair<int, std::string>> rows;
  for (const json& event : events_of(parsed, "M")) {
    if (event.at("name") != "thread_name") continue;
    rows.emplace(event.at("pid").get<int>(), event.at("args").at("name").get<std::string>());
  }
  EXPECT_EQ(rows,
            (std::set<std::pair<int, std::string>>{{0, "compute"}, {0, "gather"}, {1, "compute"}}));
  const auto spans = events_of(parsed, "X");
  EXPECT_EQ(spans.at(0).at("tid"), spans.at(2).at("tid"));
  EXPECT_NE(spans.at(0).at("tid"), spans.at(1).at("tid"));
}

TEST(Trace, KeepsStreamsOfOneNameApart) {
  Trace trace;
  trace.add({0, "copies", "x", 0, 2, 1});
  trace.add({0, "copies", "y", 1, 3, 2});
  const auto spans = events_of(written(trace), "X");
  EXPECT_NE(spans.at(0).at("tid"), spans.at(1).at("tid"));
}

TEST(Trace, NamesEachRank) {
  Trace trace;
  trace.add({0, "a", "x", 0, 1});
  trace.add({5, "a", "x", 0, 1});
  trace.add({5, "a", "y", 1, 2});
  std::vector<std::string> names;
  for (const json& event : events_of(written(trace), "M")) {
    if (event.at("name") == "process_name") names.push_back(event.at("args").at("name"));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"rank 0", "rank 5"}));
}

TEST(Trace, EscapesNames) {
  Trace trace;
  const std::string name = "a \"quoted\" \\ name\nwith a line break, tab\t and \x01";
  trace.add({0, name, name, 0, 1});
  const auto parsed = written(trace);
  EXPECT_EQ(events_of(parsed, "X").at(0).at("name"), name);
  EXPECT_EQ(events_of(parsed, "M").at(1).at("args").at("name"), name);
}

TEST(Trace, NamesThePathThatItCannotWrite) {
  EXPECT_TRUE(contains(thrown<IoError>([] { Trace().write_json("/nonexistent/trace.json"); }),
                       {"/nonexistent/trace.json", "No such file"}));
}

TEST(Trace, CollectsTheOperationsOfADevice) {
  Trace trace;
  const auto device = make_device({.threads = 1, .trace = &trace, .rank = 2});
  const auto stream = device->make_stream({.name = "compute"});
  stream->call("first", [] {});
  stream->wait(stream->record());
  stream->call("second", [] {});
  stream->synchronize();
  const auto spans = trace.spans();
  ASSERT_EQ(spans.size(), 2U);  // points and waits are no operations
  EXPECT_EQ(spans[0].name, "first");
  EXPECT_EQ(spans[1].name, "second");
  EXPECT_EQ(spans[0].row, "compute");
  EXPECT_EQ(spans[0].rank, 2);
  EXPECT_EQ(spans[0].stream_id, stream->id());
  EXPECT_LE(spans[0].begin_ns, spans[0].end_ns);
  EXPECT_LE(spans[0].end_ns, spans[1].begin_ns);
}

TEST(Trace, LeavesOutWhatWasSkipped) {
  Trace trace;
  const auto device = make_device({.threads = 1, .trace = &trace});
  const auto stream = device->make_stream({.name = "compute"});
  stream->call("fails", [] { throw std::runtime_error("first"); });
  stream->call("skipped", [] {});
  EXPECT_THROW(stream->synchronize(), std::runtime_error);
  EXPECT_TRUE(trace.spans().empty());
}

}  // namespace
}  // namespace zero3
