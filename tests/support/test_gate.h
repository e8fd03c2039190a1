#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include <zero3/internal/cpu_stream.h>

namespace zero3::test {

/// A gate that a test opens, or makes throw.
class TestGate final : public internal::Gate {
 public:
  explicit TestGate(std::string name = "the test's gate") : name_(std::move(name)) {}

  void let_pass() {
    const std::scoped_lock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void fail(std::exception_ptr error) {
    const std::scoped_lock lock(mutex_);
    error_ = std::move(error);
    changed_.notify_all();
  }

  [[nodiscard]] bool open() override {
    const std::scoped_lock lock(mutex_);
    if (error_ != nullptr) std::rethrow_exception(error_);
    return open_;
  }
  void wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_ || error_ != nullptr; });
    if (error_ != nullptr) std::rethrow_exception(error_);
  }
  [[nodiscard]] std::string describe() const override { return name_; }

 private:
  std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  std::exception_ptr error_;
};

}  // namespace zero3::test
