// The constants of the generated prologue, with values that are legal, for editors and language servers: a kernel
// includes this file only where NVRTC is not the compiler.
#pragma once

// Scans (layers/ssm/cuda).
constexpr bool kDescending = false;
constexpr int kThreads = 128;
constexpr int kVectors = 2;
constexpr int kStages = 3;
constexpr int kBlocksPerSm = 8;
constexpr int kChannelWarps = 8;
constexpr int kRun = 8;
constexpr int kStored = 0;
constexpr bool kComplex = true;
constexpr int kPerLane = 1;
constexpr bool kDecay = true;
constexpr int kRule = 0;

// LTC (layers/ltc/cuda).
constexpr int kLanes = 8;
constexpr bool kFast = true;
constexpr bool kCluster = true;
constexpr int kSlots = 8;
constexpr int kRows = 2;
constexpr bool kMany = true;
constexpr bool kRebuild = false;
constexpr bool kPairs = false;
constexpr bool kMixed = true;
constexpr bool kWords = true;
constexpr bool kPerSample = false;
constexpr int kRowLanes = 2;  // with kRows 8

// CfC (layers/cfc/cuda), beside kFast, kRows and kThreads.
constexpr int kPieces = 24;

// mLSTM (layers/mlstm/cuda).
constexpr int kDtype = 2;
constexpr int kEdge = 128;
constexpr int kColumns = 256;
constexpr int kState = 0;
constexpr int kRole = 0;
constexpr int kMask = 0;
constexpr int kWide = 4;
constexpr int kTurned = 0;
