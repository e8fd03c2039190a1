#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include <zero3/env.h>

namespace zero3 {
namespace {

/// Sets a variable of this process for the length of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(ReadEnvironment, HasTheVariablesThatItKnows) {
  for (const char* name : {"RANK",
                           "WORLD_SIZE",
                           "LOCAL_RANK",
                           "LOCAL_WORLD_SIZE",
                           "MASTER_ADDR",
                           "MASTER_PORT",
                           "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_RANK",
                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                           "PMI_RANK",
                           "PMI_SIZE",
                           "SLURM_PROCID",
                           "SLURM_NTASKS",
                           "SLURM_LOCALID",
                           "SLURM_STEP_ID",
                           "SLURM_STEP_NUM_TASKS",
                           "MPI_LOCALRANKID",
                           "PMIX_NAMESPACE",
                           "ZERO3_LOG"}) {
    const Variable variable(name, "17");
    const Environment environment = read_environment();
    ASSERT_TRUE(environment.contains(name)) << name;
    EXPECT_EQ(environment.at(name), "17");
  }
}

TEST(ReadEnvironment, LeavesOutWhatIsNotSet) {
  unsetenv("MASTER_PORT");
  EXPECT_FALSE(read_environment().contains("MASTER_PORT"));
}

TEST(ReadEnvironment, KeepsAnEmptyValue) {
  const Variable variable("MASTER_ADDR", "");
  const Environment environment = read_environment();
  ASSERT_TRUE(environment.contains("MASTER_ADDR"));
  EXPECT_EQ(environment.at("MASTER_ADDR"), "");
}

TEST(ReadEnvironment, LeavesOutWhatItDoesNotKnow) {
  const Variable variable("ZERO3_SOMETHING_ELSE", "1");
  EXPECT_FALSE(read_environment().contains("ZERO3_SOMETHING_ELSE"));
}

}  // namespace
}  // namespace zero3
