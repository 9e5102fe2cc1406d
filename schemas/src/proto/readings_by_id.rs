// Generated from the metric catalogue.
use super::{Readings, Value};

impl Readings {
    /// Every reading that is there, by DCGM field id, in order of id.
    pub fn each(&self, mut f: impl FnMut(u16, Value)) {
        if let Some(v) = self.dev_count { f(4, Value::Int(v)); }
        if let Some(v) = self.cuda_driver_version { f(5, Value::Int(v)); }
        if let Some(v) = self.dev_nvml_index { f(52, Value::Int(v)); }
        if let Some(v) = self.dev_cuda_compute_capability { f(63, Value::Int(v)); }
        if let Some(v) = self.dev_compute_mode { f(65, Value::Int(v)); }
        if let Some(v) = self.dev_persistence_mode { f(66, Value::Int(v)); }
        if let Some(v) = self.dev_mig_mode { f(67, Value::Int(v)); }
        if let Some(v) = self.dev_bar1_total { f(90, Value::Int(v)); }
        if let Some(v) = self.dev_bar1_used { f(92, Value::Int(v)); }
        if let Some(v) = self.dev_bar1_free { f(93, Value::Int(v)); }
        if let Some(v) = self.dev_sm_clock { f(100, Value::Int(v)); }
        if let Some(v) = self.dev_mem_clock { f(101, Value::Int(v)); }
        if let Some(v) = self.dev_video_clock { f(102, Value::Int(v)); }
        if let Some(v) = self.dev_app_sm_clock { f(110, Value::Int(v)); }
        if let Some(v) = self.dev_app_mem_clock { f(111, Value::Int(v)); }
        if let Some(v) = self.dev_clock_throttle_reasons { f(112, Value::Int(v)); }
        if let Some(v) = self.dev_max_sm_clock { f(113, Value::Int(v)); }
        if let Some(v) = self.dev_max_mem_clock { f(114, Value::Int(v)); }
        if let Some(v) = self.dev_max_video_clock { f(115, Value::Int(v)); }
        if let Some(v) = self.dev_memory_temp { f(140, Value::Int(v)); }
        if let Some(v) = self.dev_gpu_temp { f(150, Value::Int(v)); }
        if let Some(v) = self.dev_mem_max_op_temp { f(151, Value::Int(v)); }
        if let Some(v) = self.dev_gpu_max_op_temp { f(152, Value::Int(v)); }
        if let Some(v) = self.dev_gpu_temp_limit { f(153, Value::Int(v)); }
        if let Some(v) = self.dev_power_usage { f(155, Value::Float(v)); }
        if let Some(v) = self.dev_total_energy_consumption { f(156, Value::Int(v)); }
        if let Some(v) = self.dev_power_usage_instant { f(157, Value::Float(v)); }
        if let Some(v) = self.dev_slowdown_temp { f(158, Value::Int(v)); }
        if let Some(v) = self.dev_shutdown_temp { f(159, Value::Int(v)); }
        if let Some(v) = self.dev_power_mgmt_limit { f(160, Value::Float(v)); }
        if let Some(v) = self.dev_power_mgmt_limit_min { f(161, Value::Float(v)); }
        if let Some(v) = self.dev_power_mgmt_limit_max { f(162, Value::Float(v)); }
        if let Some(v) = self.dev_power_mgmt_limit_def { f(163, Value::Float(v)); }
        if let Some(v) = self.dev_enforced_power_limit { f(164, Value::Float(v)); }
        if let Some(v) = self.dev_pstate { f(190, Value::Int(v)); }
        if let Some(v) = self.dev_fan_speed { f(191, Value::Int(v)); }
        if let Some(v) = self.dev_pcie_tx_throughput { f(200, Value::Int(v)); }
        if let Some(v) = self.dev_pcie_rx_throughput { f(201, Value::Int(v)); }
        if let Some(v) = self.dev_pcie_replay_counter { f(202, Value::Int(v)); }
        if let Some(v) = self.dev_gpu_util { f(203, Value::Int(v)); }
        if let Some(v) = self.dev_mem_copy_util { f(204, Value::Int(v)); }
        if let Some(v) = self.dev_enc_util { f(206, Value::Int(v)); }
        if let Some(v) = self.dev_dec_util { f(207, Value::Int(v)); }
        if let Some(v) = self.dev_xid_errors { f(230, Value::Int(v)); }
        if let Some(v) = self.dev_pcie_max_link_gen { f(235, Value::Int(v)); }
        if let Some(v) = self.dev_pcie_max_link_width { f(236, Value::Int(v)); }
        if let Some(v) = self.dev_pcie_link_gen { f(237, Value::Int(v)); }
        if let Some(v) = self.dev_pcie_link_width { f(238, Value::Int(v)); }
        if let Some(v) = self.dev_power_violation { f(240, Value::Int(v)); }
        if let Some(v) = self.dev_thermal_violation { f(241, Value::Int(v)); }
        if let Some(v) = self.dev_sync_boost_violation { f(242, Value::Int(v)); }
        if let Some(v) = self.dev_board_limit_violation { f(243, Value::Int(v)); }
        if let Some(v) = self.dev_low_util_violation { f(244, Value::Int(v)); }
        if let Some(v) = self.dev_reliability_violation { f(245, Value::Int(v)); }
        if let Some(v) = self.dev_fb_total { f(250, Value::Int(v)); }
        if let Some(v) = self.dev_fb_free { f(251, Value::Int(v)); }
        if let Some(v) = self.dev_fb_used { f(252, Value::Int(v)); }
        if let Some(v) = self.dev_fb_reserved { f(253, Value::Int(v)); }
        if let Some(v) = self.dev_fb_used_percent { f(254, Value::Float(v)); }
        if let Some(v) = self.dev_ecc_sbe_vol_total { f(310, Value::Int(v)); }
        if let Some(v) = self.dev_ecc_dbe_vol_total { f(311, Value::Int(v)); }
        if let Some(v) = self.dev_ecc_sbe_agg_total { f(312, Value::Int(v)); }
        if let Some(v) = self.dev_ecc_dbe_agg_total { f(313, Value::Int(v)); }
        if let Some(v) = self.dev_retired_sbe { f(390, Value::Int(v)); }
        if let Some(v) = self.dev_retired_dbe { f(391, Value::Int(v)); }
        if let Some(v) = self.dev_retired_pending { f(392, Value::Int(v)); }
        if let Some(v) = self.dev_uncorrectable_remapped_rows { f(393, Value::Int(v)); }
        if let Some(v) = self.dev_correctable_remapped_rows { f(394, Value::Int(v)); }
        if let Some(v) = self.dev_row_remap_failure { f(395, Value::Int(v)); }
        if let Some(v) = self.dev_row_remap_pending { f(396, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_crc_flit_error_count_total { f(409, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_crc_data_error_count_total { f(419, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_replay_error_count_total { f(429, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_recovery_error_count_total { f(439, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l0 { f(440, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l1 { f(441, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l2 { f(442, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l3 { f(443, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l4 { f(444, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l5 { f(445, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l12 { f(446, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l13 { f(447, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l14 { f(448, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_total { f(449, Value::Int(v)); }
        if let Some(v) = self.dev_gpu_nvlink_errors { f(450, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l6 { f(475, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l7 { f(476, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l8 { f(477, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l9 { f(478, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l10 { f(479, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l11 { f(480, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l15 { f(494, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l16 { f(495, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_bandwidth_l17 { f(496, Value::Int(v)); }
        if let Some(v) = self.dev_vgpu_license_status { f(526, Value::Int(v)); }
        if let Some(v) = self.prof_gr_engine_active { f(1001, Value::Float(v)); }
        if let Some(v) = self.prof_sm_active { f(1002, Value::Float(v)); }
        if let Some(v) = self.prof_sm_occupancy { f(1003, Value::Float(v)); }
        if let Some(v) = self.prof_pipe_tensor_active { f(1004, Value::Float(v)); }
        if let Some(v) = self.prof_dram_active { f(1005, Value::Float(v)); }
        if let Some(v) = self.prof_pipe_fp64_active { f(1006, Value::Float(v)); }
        if let Some(v) = self.prof_pipe_fp32_active { f(1007, Value::Float(v)); }
        if let Some(v) = self.prof_pipe_fp16_active { f(1008, Value::Float(v)); }
        if let Some(v) = self.prof_pcie_tx_bytes { f(1009, Value::Int(v)); }
        if let Some(v) = self.prof_pcie_rx_bytes { f(1010, Value::Int(v)); }
        if let Some(v) = self.prof_nvlink_tx_bytes { f(1011, Value::Int(v)); }
        if let Some(v) = self.prof_nvlink_rx_bytes { f(1012, Value::Int(v)); }
        if let Some(v) = self.prof_pipe_tensor_imma_active { f(1013, Value::Float(v)); }
        if let Some(v) = self.prof_pipe_tensor_hmma_active { f(1014, Value::Float(v)); }
        if let Some(v) = self.prof_pipe_tensor_dfma_active { f(1015, Value::Float(v)); }
        if let Some(v) = self.prof_pipe_int_active { f(1016, Value::Float(v)); }
        if let Some(v) = self.prof_nvdec0_active { f(1017, Value::Float(v)); }
        if let Some(v) = self.prof_nvdec1_active { f(1018, Value::Float(v)); }
        if let Some(v) = self.prof_nvdec2_active { f(1019, Value::Float(v)); }
        if let Some(v) = self.prof_nvdec3_active { f(1020, Value::Float(v)); }
        if let Some(v) = self.prof_nvdec4_active { f(1021, Value::Float(v)); }
        if let Some(v) = self.prof_nvdec5_active { f(1022, Value::Float(v)); }
        if let Some(v) = self.prof_nvdec6_active { f(1023, Value::Float(v)); }
        if let Some(v) = self.prof_nvdec7_active { f(1024, Value::Float(v)); }
        if let Some(v) = self.prof_nvjpg0_active { f(1025, Value::Float(v)); }
        if let Some(v) = self.prof_nvjpg1_active { f(1026, Value::Float(v)); }
        if let Some(v) = self.prof_nvjpg2_active { f(1027, Value::Float(v)); }
        if let Some(v) = self.prof_nvjpg3_active { f(1028, Value::Float(v)); }
        if let Some(v) = self.prof_nvjpg4_active { f(1029, Value::Float(v)); }
        if let Some(v) = self.prof_nvjpg5_active { f(1030, Value::Float(v)); }
        if let Some(v) = self.prof_nvjpg6_active { f(1031, Value::Float(v)); }
        if let Some(v) = self.prof_nvjpg7_active { f(1032, Value::Float(v)); }
        if let Some(v) = self.prof_nvofa0_active { f(1033, Value::Float(v)); }
        if let Some(v) = self.prof_nvofa1_active { f(1034, Value::Float(v)); }
        if let Some(v) = self.prof_sm_cycles_elapsed_total { f(1084, Value::Int(v)); }
        if let Some(v) = self.prof_sm_cycles_active_total { f(1085, Value::Int(v)); }
        if let Some(v) = self.prof_mma_cycles_active_total { f(1086, Value::Int(v)); }
        if let Some(v) = self.prof_dmma_cycles_active_total { f(1087, Value::Int(v)); }
        if let Some(v) = self.prof_hmma_cycles_active_total { f(1088, Value::Int(v)); }
        if let Some(v) = self.prof_imma_cycles_active_total { f(1089, Value::Int(v)); }
        if let Some(v) = self.prof_dfma_cycles_active_total { f(1090, Value::Int(v)); }
        if let Some(v) = self.prof_pcie_tx_bytes_total { f(1091, Value::Int(v)); }
        if let Some(v) = self.prof_pcie_rx_bytes_total { f(1092, Value::Int(v)); }
        if let Some(v) = self.prof_int_cycles_active_total { f(1093, Value::Int(v)); }
        if let Some(v) = self.prof_fp64_cycles_active_total { f(1094, Value::Int(v)); }
        if let Some(v) = self.prof_fp32_cycles_active_total { f(1095, Value::Int(v)); }
        if let Some(v) = self.prof_fp16_cycles_active_total { f(1096, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_count_tx_packets { f(1200, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_count_tx_bytes { f(1201, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_count_rx_packets { f(1202, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_count_rx_bytes { f(1203, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_count_rx_malformed_packet_errors { f(1204, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_count_rx_buffer_overrun_errors { f(1205, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_count_rx_errors { f(1206, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_count_rx_remote_errors { f(1207, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_count_rx_general_errors { f(1208, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_count_local_link_integrity_errors { f(1209, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_count_tx_discards { f(1210, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_count_link_recovery_successful_events { f(1211, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_count_link_recovery_failed_events { f(1212, Value::Int(v)); }
        if let Some(v) = self.dev_nvlink_count_link_recovery_events { f(1213, Value::Int(v)); }
    }

    /// The reading of field `id`, if there.
    pub fn get(&self, id: u16) -> Option<Value> {
        match id {
            4 => self.dev_count.map(Value::Int),
            5 => self.cuda_driver_version.map(Value::Int),
            52 => self.dev_nvml_index.map(Value::Int),
            63 => self.dev_cuda_compute_capability.map(Value::Int),
            65 => self.dev_compute_mode.map(Value::Int),
            66 => self.dev_persistence_mode.map(Value::Int),
            67 => self.dev_mig_mode.map(Value::Int),
            90 => self.dev_bar1_total.map(Value::Int),
            92 => self.dev_bar1_used.map(Value::Int),
            93 => self.dev_bar1_free.map(Value::Int),
            100 => self.dev_sm_clock.map(Value::Int),
            101 => self.dev_mem_clock.map(Value::Int),
            102 => self.dev_video_clock.map(Value::Int),
            110 => self.dev_app_sm_clock.map(Value::Int),
            111 => self.dev_app_mem_clock.map(Value::Int),
            112 => self.dev_clock_throttle_reasons.map(Value::Int),
            113 => self.dev_max_sm_clock.map(Value::Int),
            114 => self.dev_max_mem_clock.map(Value::Int),
            115 => self.dev_max_video_clock.map(Value::Int),
            140 => self.dev_memory_temp.map(Value::Int),
            150 => self.dev_gpu_temp.map(Value::Int),
            151 => self.dev_mem_max_op_temp.map(Value::Int),
            152 => self.dev_gpu_max_op_temp.map(Value::Int),
            153 => self.dev_gpu_temp_limit.map(Value::Int),
            155 => self.dev_power_usage.map(Value::Float),
            156 => self.dev_total_energy_consumption.map(Value::Int),
            157 => self.dev_power_usage_instant.map(Value::Float),
            158 => self.dev_slowdown_temp.map(Value::Int),
            159 => self.dev_shutdown_temp.map(Value::Int),
            160 => self.dev_power_mgmt_limit.map(Value::Float),
            161 => self.dev_power_mgmt_limit_min.map(Value::Float),
            162 => self.dev_power_mgmt_limit_max.map(Value::Float),
            163 => self.dev_power_mgmt_limit_def.map(Value::Float),
            164 => self.dev_enforced_power_limit.map(Value::Float),
            190 => self.dev_pstate.map(Value::Int),
            191 => self.dev_fan_speed.map(Value::Int),
            200 => self.dev_pcie_tx_throughput.map(Value::Int),
            201 => self.dev_pcie_rx_throughput.map(Value::Int),
            202 => self.dev_pcie_replay_counter.map(Value::Int),
            203 => self.dev_gpu_util.map(Value::Int),
            204 => self.dev_mem_copy_util.map(Value::Int),
            206 => self.dev_enc_util.map(Value::Int),
            207 => self.dev_dec_util.map(Value::Int),
            230 => self.dev_xid_errors.map(Value::Int),
            235 => self.dev_pcie_max_link_gen.map(Value::Int),
            236 => self.dev_pcie_max_link_width.map(Value::Int),
            237 => self.dev_pcie_link_gen.map(Value::Int),
            238 => self.dev_pcie_link_width.map(Value::Int),
            240 => self.dev_power_violation.map(Value::Int),
            241 => self.dev_thermal_violation.map(Value::Int),
            242 => self.dev_sync_boost_violation.map(Value::Int),
            243 => self.dev_board_limit_violation.map(Value::Int),
            244 => self.dev_low_util_violation.map(Value::Int),
            245 => self.dev_reliability_violation.map(Value::Int),
            250 => self.dev_fb_total.map(Value::Int),
            251 => self.dev_fb_free.map(Value::Int),
            252 => self.dev_fb_used.map(Value::Int),
            253 => self.dev_fb_reserved.map(Value::Int),
            254 => self.dev_fb_used_percent.map(Value::Float),
            310 => self.dev_ecc_sbe_vol_total.map(Value::Int),
            311 => self.dev_ecc_dbe_vol_total.map(Value::Int),
            312 => self.dev_ecc_sbe_agg_total.map(Value::Int),
            313 => self.dev_ecc_dbe_agg_total.map(Value::Int),
            390 => self.dev_retired_sbe.map(Value::Int),
            391 => self.dev_retired_dbe.map(Value::Int),
            392 => self.dev_retired_pending.map(Value::Int),
            393 => self.dev_uncorrectable_remapped_rows.map(Value::Int),
            394 => self.dev_correctable_remapped_rows.map(Value::Int),
            395 => self.dev_row_remap_failure.map(Value::Int),
            396 => self.dev_row_remap_pending.map(Value::Int),
            409 => self.dev_nvlink_crc_flit_error_count_total.map(Value::Int),
            419 => self.dev_nvlink_crc_data_error_count_total.map(Value::Int),
            429 => self.dev_nvlink_replay_error_count_total.map(Value::Int),
            439 => self.dev_nvlink_recovery_error_count_total.map(Value::Int),
            440 => self.dev_nvlink_bandwidth_l0.map(Value::Int),
            441 => self.dev_nvlink_bandwidth_l1.map(Value::Int),
            442 => self.dev_nvlink_bandwidth_l2.map(Value::Int),
            443 => self.dev_nvlink_bandwidth_l3.map(Value::Int),
            444 => self.dev_nvlink_bandwidth_l4.map(Value::Int),
            445 => self.dev_nvlink_bandwidth_l5.map(Value::Int),
            446 => self.dev_nvlink_bandwidth_l12.map(Value::Int),
            447 => self.dev_nvlink_bandwidth_l13.map(Value::Int),
            448 => self.dev_nvlink_bandwidth_l14.map(Value::Int),
            449 => self.dev_nvlink_bandwidth_total.map(Value::Int),
            450 => self.dev_gpu_nvlink_errors.map(Value::Int),
            475 => self.dev_nvlink_bandwidth_l6.map(Value::Int),
            476 => self.dev_nvlink_bandwidth_l7.map(Value::Int),
            477 => self.dev_nvlink_bandwidth_l8.map(Value::Int),
            478 => self.dev_nvlink_bandwidth_l9.map(Value::Int),
            479 => self.dev_nvlink_bandwidth_l10.map(Value::Int),
            480 => self.dev_nvlink_bandwidth_l11.map(Value::Int),
            494 => self.dev_nvlink_bandwidth_l15.map(Value::Int),
            495 => self.dev_nvlink_bandwidth_l16.map(Value::Int),
            496 => self.dev_nvlink_bandwidth_l17.map(Value::Int),
            526 => self.dev_vgpu_license_status.map(Value::Int),
            1001 => self.prof_gr_engine_active.map(Value::Float),
            1002 => self.prof_sm_active.map(Value::Float),
            1003 => self.prof_sm_occupancy.map(Value::Float),
            1004 => self.prof_pipe_tensor_active.map(Value::Float),
            1005 => self.prof_dram_active.map(Value::Float),
            1006 => self.prof_pipe_fp64_active.map(Value::Float),
            1007 => self.prof_pipe_fp32_active.map(Value::Float),
            1008 => self.prof_pipe_fp16_active.map(Value::Float),
            1009 => self.prof_pcie_tx_bytes.map(Value::Int),
            1010 => self.prof_pcie_rx_bytes.map(Value::Int),
            1011 => self.prof_nvlink_tx_bytes.map(Value::Int),
            1012 => self.prof_nvlink_rx_bytes.map(Value::Int),
            1013 => self.prof_pipe_tensor_imma_active.map(Value::Float),
            1014 => self.prof_pipe_tensor_hmma_active.map(Value::Float),
            1015 => self.prof_pipe_tensor_dfma_active.map(Value::Float),
            1016 => self.prof_pipe_int_active.map(Value::Float),
            1017 => self.prof_nvdec0_active.map(Value::Float),
            1018 => self.prof_nvdec1_active.map(Value::Float),
            1019 => self.prof_nvdec2_active.map(Value::Float),
            1020 => self.prof_nvdec3_active.map(Value::Float),
            1021 => self.prof_nvdec4_active.map(Value::Float),
            1022 => self.prof_nvdec5_active.map(Value::Float),
            1023 => self.prof_nvdec6_active.map(Value::Float),
            1024 => self.prof_nvdec7_active.map(Value::Float),
            1025 => self.prof_nvjpg0_active.map(Value::Float),
            1026 => self.prof_nvjpg1_active.map(Value::Float),
            1027 => self.prof_nvjpg2_active.map(Value::Float),
            1028 => self.prof_nvjpg3_active.map(Value::Float),
            1029 => self.prof_nvjpg4_active.map(Value::Float),
            1030 => self.prof_nvjpg5_active.map(Value::Float),
            1031 => self.prof_nvjpg6_active.map(Value::Float),
            1032 => self.prof_nvjpg7_active.map(Value::Float),
            1033 => self.prof_nvofa0_active.map(Value::Float),
            1034 => self.prof_nvofa1_active.map(Value::Float),
            1084 => self.prof_sm_cycles_elapsed_total.map(Value::Int),
            1085 => self.prof_sm_cycles_active_total.map(Value::Int),
            1086 => self.prof_mma_cycles_active_total.map(Value::Int),
            1087 => self.prof_dmma_cycles_active_total.map(Value::Int),
            1088 => self.prof_hmma_cycles_active_total.map(Value::Int),
            1089 => self.prof_imma_cycles_active_total.map(Value::Int),
            1090 => self.prof_dfma_cycles_active_total.map(Value::Int),
            1091 => self.prof_pcie_tx_bytes_total.map(Value::Int),
            1092 => self.prof_pcie_rx_bytes_total.map(Value::Int),
            1093 => self.prof_int_cycles_active_total.map(Value::Int),
            1094 => self.prof_fp64_cycles_active_total.map(Value::Int),
            1095 => self.prof_fp32_cycles_active_total.map(Value::Int),
            1096 => self.prof_fp16_cycles_active_total.map(Value::Int),
            1200 => self.dev_nvlink_count_tx_packets.map(Value::Int),
            1201 => self.dev_nvlink_count_tx_bytes.map(Value::Int),
            1202 => self.dev_nvlink_count_rx_packets.map(Value::Int),
            1203 => self.dev_nvlink_count_rx_bytes.map(Value::Int),
            1204 => self.dev_nvlink_count_rx_malformed_packet_errors.map(Value::Int),
            1205 => self.dev_nvlink_count_rx_buffer_overrun_errors.map(Value::Int),
            1206 => self.dev_nvlink_count_rx_errors.map(Value::Int),
            1207 => self.dev_nvlink_count_rx_remote_errors.map(Value::Int),
            1208 => self.dev_nvlink_count_rx_general_errors.map(Value::Int),
            1209 => self.dev_nvlink_count_local_link_integrity_errors.map(Value::Int),
            1210 => self.dev_nvlink_count_tx_discards.map(Value::Int),
            1211 => self.dev_nvlink_count_link_recovery_successful_events.map(Value::Int),
            1212 => self.dev_nvlink_count_link_recovery_failed_events.map(Value::Int),
            1213 => self.dev_nvlink_count_link_recovery_events.map(Value::Int),
            _ => None,
        }
    }

    /// Sets the reading of field `id`; false where no such field has a column, or the value is of the other type.
    pub fn set(&mut self, id: u16, value: Value) -> bool {
        match (id, value) {
            (4, Value::Int(v)) => self.dev_count = Some(v),
            (5, Value::Int(v)) => self.cuda_driver_version = Some(v),
            (52, Value::Int(v)) => self.dev_nvml_index = Some(v),
            (63, Value::Int(v)) => self.dev_cuda_compute_capability = Some(v),
            (65, Value::Int(v)) => self.dev_compute_mode = Some(v),
            (66, Value::Int(v)) => self.dev_persistence_mode = Some(v),
            (67, Value::Int(v)) => self.dev_mig_mode = Some(v),
            (90, Value::Int(v)) => self.dev_bar1_total = Some(v),
            (92, Value::Int(v)) => self.dev_bar1_used = Some(v),
            (93, Value::Int(v)) => self.dev_bar1_free = Some(v),
            (100, Value::Int(v)) => self.dev_sm_clock = Some(v),
            (101, Value::Int(v)) => self.dev_mem_clock = Some(v),
            (102, Value::Int(v)) => self.dev_video_clock = Some(v),
            (110, Value::Int(v)) => self.dev_app_sm_clock = Some(v),
            (111, Value::Int(v)) => self.dev_app_mem_clock = Some(v),
            (112, Value::Int(v)) => self.dev_clock_throttle_reasons = Some(v),
            (113, Value::Int(v)) => self.dev_max_sm_clock = Some(v),
            (114, Value::Int(v)) => self.dev_max_mem_clock = Some(v),
            (115, Value::Int(v)) => self.dev_max_video_clock = Some(v),
            (140, Value::Int(v)) => self.dev_memory_temp = Some(v),
            (150, Value::Int(v)) => self.dev_gpu_temp = Some(v),
            (151, Value::Int(v)) => self.dev_mem_max_op_temp = Some(v),
            (152, Value::Int(v)) => self.dev_gpu_max_op_temp = Some(v),
            (153, Value::Int(v)) => self.dev_gpu_temp_limit = Some(v),
            (155, Value::Float(v)) => self.dev_power_usage = Some(v),
            (156, Value::Int(v)) => self.dev_total_energy_consumption = Some(v),
            (157, Value::Float(v)) => self.dev_power_usage_instant = Some(v),
            (158, Value::Int(v)) => self.dev_slowdown_temp = Some(v),
            (159, Value::Int(v)) => self.dev_shutdown_temp = Some(v),
            (160, Value::Float(v)) => self.dev_power_mgmt_limit = Some(v),
            (161, Value::Float(v)) => self.dev_power_mgmt_limit_min = Some(v),
            (162, Value::Float(v)) => self.dev_power_mgmt_limit_max = Some(v),
            (163, Value::Float(v)) => self.dev_power_mgmt_limit_def = Some(v),
            (164, Value::Float(v)) => self.dev_enforced_power_limit = Some(v),
            (190, Value::Int(v)) => self.dev_pstate = Some(v),
            (191, Value::Int(v)) => self.dev_fan_speed = Some(v),
            (200, Value::Int(v)) => self.dev_pcie_tx_throughput = Some(v),
            (201, Value::Int(v)) => self.dev_pcie_rx_throughput = Some(v),
            (202, Value::Int(v)) => self.dev_pcie_replay_counter = Some(v),
            (203, Value::Int(v)) => self.dev_gpu_util = Some(v),
            (204, Value::Int(v)) => self.dev_mem_copy_util = Some(v),
            (206, Value::Int(v)) => self.dev_enc_util = Some(v),
            (207, Value::Int(v)) => self.dev_dec_util = Some(v),
            (230, Value::Int(v)) => self.dev_xid_errors = Some(v),
            (235, Value::Int(v)) => self.dev_pcie_max_link_gen = Some(v),
            (236, Value::Int(v)) => self.dev_pcie_max_link_width = Some(v),
            (237, Value::Int(v)) => self.dev_pcie_link_gen = Some(v),
            (238, Value::Int(v)) => self.dev_pcie_link_width = Some(v),
            (240, Value::Int(v)) => self.dev_power_violation = Some(v),
            (241, Value::Int(v)) => self.dev_thermal_violation = Some(v),
            (242, Value::Int(v)) => self.dev_sync_boost_violation = Some(v),
            (243, Value::Int(v)) => self.dev_board_limit_violation = Some(v),
            (244, Value::Int(v)) => self.dev_low_util_violation = Some(v),
            (245, Value::Int(v)) => self.dev_reliability_violation = Some(v),
            (250, Value::Int(v)) => self.dev_fb_total = Some(v),
            (251, Value::Int(v)) => self.dev_fb_free = Some(v),
            (252, Value::Int(v)) => self.dev_fb_used = Some(v),
            (253, Value::Int(v)) => self.dev_fb_reserved = Some(v),
            (254, Value::Float(v)) => self.dev_fb_used_percent = Some(v),
            (310, Value::Int(v)) => self.dev_ecc_sbe_vol_total = Some(v),
            (311, Value::Int(v)) => self.dev_ecc_dbe_vol_total = Some(v),
            (312, Value::Int(v)) => self.dev_ecc_sbe_agg_total = Some(v),
            (313, Value::Int(v)) => self.dev_ecc_dbe_agg_total = Some(v),
            (390, Value::Int(v)) => self.dev_retired_sbe = Some(v),
            (391, Value::Int(v)) => self.dev_retired_dbe = Some(v),
            (392, Value::Int(v)) => self.dev_retired_pending = Some(v),
            (393, Value::Int(v)) => self.dev_uncorrectable_remapped_rows = Some(v),
            (394, Value::Int(v)) => self.dev_correctable_remapped_rows = Some(v),
            (395, Value::Int(v)) => self.dev_row_remap_failure = Some(v),
            (396, Value::Int(v)) => self.dev_row_remap_pending = Some(v),
            (409, Value::Int(v)) => self.dev_nvlink_crc_flit_error_count_total = Some(v),
            (419, Value::Int(v)) => self.dev_nvlink_crc_data_error_count_total = Some(v),
            (429, Value::Int(v)) => self.dev_nvlink_replay_error_count_total = Some(v),
            (439, Value::Int(v)) => self.dev_nvlink_recovery_error_count_total = Some(v),
            (440, Value::Int(v)) => self.dev_nvlink_bandwidth_l0 = Some(v),
            (441, Value::Int(v)) => self.dev_nvlink_bandwidth_l1 = Some(v),
            (442, Value::Int(v)) => self.dev_nvlink_bandwidth_l2 = Some(v),
            (443, Value::Int(v)) => self.dev_nvlink_bandwidth_l3 = Some(v),
            (444, Value::Int(v)) => self.dev_nvlink_bandwidth_l4 = Some(v),
            (445, Value::Int(v)) => self.dev_nvlink_bandwidth_l5 = Some(v),
            (446, Value::Int(v)) => self.dev_nvlink_bandwidth_l12 = Some(v),
            (447, Value::Int(v)) => self.dev_nvlink_bandwidth_l13 = Some(v),
            (448, Value::Int(v)) => self.dev_nvlink_bandwidth_l14 = Some(v),
            (449, Value::Int(v)) => self.dev_nvlink_bandwidth_total = Some(v),
            (450, Value::Int(v)) => self.dev_gpu_nvlink_errors = Some(v),
            (475, Value::Int(v)) => self.dev_nvlink_bandwidth_l6 = Some(v),
            (476, Value::Int(v)) => self.dev_nvlink_bandwidth_l7 = Some(v),
            (477, Value::Int(v)) => self.dev_nvlink_bandwidth_l8 = Some(v),
            (478, Value::Int(v)) => self.dev_nvlink_bandwidth_l9 = Some(v),
            (479, Value::Int(v)) => self.dev_nvlink_bandwidth_l10 = Some(v),
            (480, Value::Int(v)) => self.dev_nvlink_bandwidth_l11 = Some(v),
            (494, Value::Int(v)) => self.dev_nvlink_bandwidth_l15 = Some(v),
            (495, Value::Int(v)) => self.dev_nvlink_bandwidth_l16 = Some(v),
            (496, Value::Int(v)) => self.dev_nvlink_bandwidth_l17 = Some(v),
            (526, Value::Int(v)) => self.dev_vgpu_license_status = Some(v),
            (1001, Value::Float(v)) => self.prof_gr_engine_active = Some(v),
            (1002, Value::Float(v)) => self.prof_sm_active = Some(v),
            (1003, Value::Float(v)) => self.prof_sm_occupancy = Some(v),
            (1004, Value::Float(v)) => self.prof_pipe_tensor_active = Some(v),
            (1005, Value::Float(v)) => self.prof_dram_active = Some(v),
            (1006, Value::Float(v)) => self.prof_pipe_fp64_active = Some(v),
            (1007, Value::Float(v)) => self.prof_pipe_fp32_active = Some(v),
            (1008, Value::Float(v)) => self.prof_pipe_fp16_active = Some(v),
            (1009, Value::Int(v)) => self.prof_pcie_tx_bytes = Some(v),
            (1010, Value::Int(v)) => self.prof_pcie_rx_bytes = Some(v),
            (1011, Value::Int(v)) => self.prof_nvlink_tx_bytes = Some(v),
            (1012, Value::Int(v)) => self.prof_nvlink_rx_bytes = Some(v),
            (1013, Value::Float(v)) => self.prof_pipe_tensor_imma_active = Some(v),
            (1014, Value::Float(v)) => self.prof_pipe_tensor_hmma_active = Some(v),
            (1015, Value::Float(v)) => self.prof_pipe_tensor_dfma_active = Some(v),
            (1016, Value::Float(v)) => self.prof_pipe_int_active = Some(v),
            (1017, Value::Float(v)) => self.prof_nvdec0_active = Some(v),
            (1018, Value::Float(v)) => self.prof_nvdec1_active = Some(v),
            (1019, Value::Float(v)) => self.prof_nvdec2_active = Some(v),
            (1020, Value::Float(v)) => self.prof_nvdec3_active = Some(v),
            (1021, Value::Float(v)) => self.prof_nvdec4_active = Some(v),
            (1022, Value::Float(v)) => self.prof_nvdec5_active = Some(v),
            (1023, Value::Float(v)) => self.prof_nvdec6_active = Some(v),
            (1024, Value::Float(v)) => self.prof_nvdec7_active = Some(v),
            (1025, Value::Float(v)) => self.prof_nvjpg0_active = Some(v),
            (1026, Value::Float(v)) => self.prof_nvjpg1_active = Some(v),
            (1027, Value::Float(v)) => self.prof_nvjpg2_active = Some(v),
            (1028, Value::Float(v)) => self.prof_nvjpg3_active = Some(v),
            (1029, Value::Float(v)) => self.prof_nvjpg4_active = Some(v),
            (1030, Value::Float(v)) => self.prof_nvjpg5_active = Some(v),
            (1031, Value::Float(v)) => self.prof_nvjpg6_active = Some(v),
            (1032, Value::Float(v)) => self.prof_nvjpg7_active = Some(v),
            (1033, Value::Float(v)) => self.prof_nvofa0_active = Some(v),
            (1034, Value::Float(v)) => self.prof_nvofa1_active = Some(v),
            (1084, Value::Int(v)) => self.prof_sm_cycles_elapsed_total = Some(v),
            (1085, Value::Int(v)) => self.prof_sm_cycles_active_total = Some(v),
            (1086, Value::Int(v)) => self.prof_mma_cycles_active_total = Some(v),
            (1087, Value::Int(v)) => self.prof_dmma_cycles_active_total = Some(v),
            (1088, Value::Int(v)) => self.prof_hmma_cycles_active_total = Some(v),
            (1089, Value::Int(v)) => self.prof_imma_cycles_active_total = Some(v),
            (1090, Value::Int(v)) => self.prof_dfma_cycles_active_total = Some(v),
            (1091, Value::Int(v)) => self.prof_pcie_tx_bytes_total = Some(v),
            (1092, Value::Int(v)) => self.prof_pcie_rx_bytes_total = Some(v),
            (1093, Value::Int(v)) => self.prof_int_cycles_active_total = Some(v),
            (1094, Value::Int(v)) => self.prof_fp64_cycles_active_total = Some(v),
            (1095, Value::Int(v)) => self.prof_fp32_cycles_active_total = Some(v),
            (1096, Value::Int(v)) => self.prof_fp16_cycles_active_total = Some(v),
            (1200, Value::Int(v)) => self.dev_nvlink_count_tx_packets = Some(v),
            (1201, Value::Int(v)) => self.dev_nvlink_count_tx_bytes = Some(v),
            (1202, Value::Int(v)) => self.dev_nvlink_count_rx_packets = Some(v),
            (1203, Value::Int(v)) => self.dev_nvlink_count_rx_bytes = Some(v),
            (1204, Value::Int(v)) => self.dev_nvlink_count_rx_malformed_packet_errors = Some(v),
            (1205, Value::Int(v)) => self.dev_nvlink_count_rx_buffer_overrun_errors = Some(v),
            (1206, Value::Int(v)) => self.dev_nvlink_count_rx_errors = Some(v),
            (1207, Value::Int(v)) => self.dev_nvlink_count_rx_remote_errors = Some(v),
            (1208, Value::Int(v)) => self.dev_nvlink_count_rx_general_errors = Some(v),
            (1209, Value::Int(v)) => self.dev_nvlink_count_local_link_integrity_errors = Some(v),
            (1210, Value::Int(v)) => self.dev_nvlink_count_tx_discards = Some(v),
            (1211, Value::Int(v)) => self.dev_nvlink_count_link_recovery_successful_events = Some(v),
            (1212, Value::Int(v)) => self.dev_nvlink_count_link_recovery_failed_events = Some(v),
            (1213, Value::Int(v)) => self.dev_nvlink_count_link_recovery_events = Some(v),
            _ => return false,
        }
        true
    }
}
