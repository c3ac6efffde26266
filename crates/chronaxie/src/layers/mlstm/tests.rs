//! What is special to the mLSTM.

mod law;
