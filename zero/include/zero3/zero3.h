#pragma once

/// Everything that a trainer needs.
#include <zero3/activation_store.h>
#include <zero3/buffer.h>
#include <zero3/communicator.h>
#include <zero3/copy.h>
#include <zero3/device.h>
#include <zero3/engine.h>
#include <zero3/env.h>
#include <zero3/launch.h>
#include <zero3/layer.h>
#include <zero3/layer_stack.h>
#include <zero3/local_world.h>
#include <zero3/lr_schedule.h>
#include <zero3/mpi_world.h>
#include <zero3/shard_layout.h>
#include <zero3/tile_policy.h>
#include <zero3/tokenwise_region.h>
