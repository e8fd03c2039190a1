#include <zero3/launch.h>

#include <charconv>
#include <system_error>
#include <utility>
#include <vector>

#include <zero3/error.h>

namespace zero3 {
namespace {

/// A number, and what gave it, for errors: "RANK=3".
struct Given {
  std::string name;
  int value = 0;
  [[nodiscard]] std::string text() const { return concat(name, '=', value); }
};

/// What one source says of this process.
struct Claim {
  Launch::By by;
  std::optional<Given> rank, world_size, local_rank;
};

std::optional<Given> number(const Environment& environment, const std::string& name) {
  const auto entry = environment.find(name);
  if (entry == environment.end()) return std::nullopt;
  const std::string& text = entry->second;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  ZERO3_CHECK(error == std::errc() && end == text.data() + text.size(), name, "='", text,
              "' is not a whole number; set it to one, or unset it");
  return Given{name, value};
}

Claim claim(const Environment& environment, Launch::By by, const std::string& rank,
            const std::string& world_size, const std::string& local_rank) {
  Claim found{by, number(environment, rank), number(environment, world_size),
              number(environment, local_rank)};
  return found;
}

/// A launcher sets both or none.
void check_complete(const Claim& found, const char* rank, const char* world_size) {
  if (found.rank.has_value() == found.world_size.has_value()) return;
  const Given& there = found.rank ? *found.rank : *found.world_size;
  throw UsageError(concat(there.text(), " is set but ", found.rank ? world_size : rank,
                          " is not; set both, or none for a single process"));
}

/// Slurm's own numbers for the steps that are not srun's (batch script, interactive shell, …) begin
/// here.
constexpr std::uint64_t kFirstReservedStep = 0xfffffff0;

bool in_srun_step(const Environment& environment) {
  const auto entry = environment.find("SLURM_STEP_ID");
  if (entry == environment.end()) return false;
  const std::string& text = entry->second;
  std::uint64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  return error == std::errc() && end == text.data() + text.size() && step < kFirstReservedStep;
}

std::optional<Claim> slurm_claim(const Environment& environment) {
  if (!in_srun_step(environment)) return std::nullopt;
  const bool has_step_size = environment.contains("SLURM_STEP_NUM_TASKS");
  const char* world_size = has_step_size ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  Claim found = claim(environment, Launch::By::kSlurm, "SLURM_PROCID", world_size, "SLURM_LOCALID");
  check_complete(found, "SLURM_PROCID", world_size);
  return found;
}

void check_agree(const std::optional<Given>& first, const std::optional<Given>& second) {
  if (!first || !second || first->value == second->value) return;
  throw UsageError(concat(first->text(), " contradicts ", second->text(),
                          "; unset the variables of the launcher that did not start this process"));
}

/// The sources in order of precedence, checked against each other where no argument settles it.
std::vector<Claim> claims_of(const Environment& environment, const LaunchArguments& arguments) {
  std::vector<Claim> claims;
  claims.push_back(
      claim(environment, Launch::By::kEnvironment, "RANK", "WORLD_SIZE", "LOCAL_RANK"));
  if (!arguments.world_size && !arguments.rank && claims[0].rank && !claims[0].world_size) {
    throw UsageError(
        concat(claims[0].rank->text(),
               " is set but WORLD_SIZE is not; set both, or none for a single process"));
  }
  Claim mpi = claim(environment, Launch::By::kOpenMpi, "OMPI_COMM_WORLD_RANK",
                    "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK");
  check_complete(mpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  Claim pmi = claim(environment, Launch::By::kPmi, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID");
  check_complete(pmi, "PMI_RANK", "PMI_SIZE");
  claims.push_back(std::move(mpi));
  claims.push_back(std::move(pmi));
  for (std::size_t a = 0; a < claims.size(); ++a) {
    for (std::size_t b = a + 1; b < claims.size(); ++b) {
      if (!arguments.world_size) check_agree(claims[a].world_size, claims[b].world_size);
      if (!arguments.rank) check_agree(claims[a].rank, claims[b].rank);
    }
  }
  return claims;
}

std::optional<Given> argument(const char* name, std::optional<int> value) {
  if (!value) return std::nullopt;
  return Given{concat("the argument ", name), *value};
}

void check_inside(const Given& rank, const Given& world_size) {
  ZERO3_CHECK(rank.value >= 0 && rank.value < world_size.value, rank.text(),
              " is outside the world of ", world_size.text(), "; ranks go from 0 to ",
              world_size.value - 1);
}

void read_master(const Environment& environment, Launch& launch) {
  if (const auto entry = environment.find("MASTER_ADDR"); entry != environment.end()) {
    ZERO3_CHECK(!entry->second.empty(),
                "MASTER_ADDR is set but empty; unset it, or give an address");
    launch.master_address = entry->second;
  }
  if (const auto port = number(environment, "MASTER_PORT")) {
    ZERO3_CHECK(port->value >= 1 && port->value <= 65535, port->text(),
                " is no port; choose one from 1 to 65535");
    launch.master_port = port->value;
  }
}

}  // namespace

std::string_view name_of(Launch::By by) {
  switch (by) {
    case Launch::By::kNobody:
      return "nobody";
    case Launch::By::kArguments:
      return "arguments";
    case Launch::By::kEnvironment:
      return "RANK and WORLD_SIZE";
    case Launch::By::kOpenMpi:
      return "Open MPI";
    case Launch::By::kPmi:
      return "PMI";
    case Launch::By::kSlurm:
      return "Slurm";
  }
  return "unknown";
}

Launch resolve_launch(const Environment& environment, const LaunchArguments& arguments) {
  Launch launch;
  std::optional<Given> rank = argument("rank", arguments.rank);
  std::optional<Given> world_size = argument("world_size", arguments.world_size);
  std::optional<Given> local_rank = argument("local_rank", arguments.local_rank);
  if (rank || world_size) launch.by = Launch::By::kArguments;

  const auto take = [&](const Claim& claim) {
    if (!world_size && claim.world_size && launch.by == Launch::By::kNobody) launch.by = claim.by;
    if (!world_size) world_size = claim.world_size;
    if (!rank) rank = claim.rank;
    if (!local_rank) local_rank = claim.local_rank;
  };
  for (const Claim& claim : claims_of(environment, arguments)) take(claim);
  if (!rank || !world_size) {
    const std::optional<Claim> slurm = slurm_claim(environment);
    const bool of_this_world = slurm && slurm->world_size &&
                               (!world_size || world_size->value == slurm->world_size->value);
    if (of_this_world) take(*slurm);
  }

  const Given size = world_size.value_or(Given{"world size", 1});
  ZERO3_CHECK(size.value >= 1, size.text(), " is no size of a world; give 1 or more");
  ZERO3_CHECK(rank || size.value == 1, size.text(),
              " but no rank is given: every process would be rank 0; set RANK, or start the "
              "processes with a launcher that does");
  launch.world_size = size.value;
  if (rank) {
    check_inside(*rank, size);
    launch.rank = rank->value;
  }
  if (local_rank) {
    check_inside(*local_rank, size);
    launch.local_rank = local_rank->value;
  }
  read_master(environment, launch);
  return launch;
}

void check_launch_matches(const Launch& launch, int group_size) {
  ZERO3_CHECK(launch.world_size == group_size, "the launch (by ", name_of(launch.by), ") has ",
              launch.world_size, " ranks, the communicator ", group_size,
              ": each group would train a model of its own; start all ranks with one launcher "
              "(mpirun -n ",
              launch.world_size, "), or unset WORLD_SIZE and RANK for a single process");
}

}  // namespace zero3
