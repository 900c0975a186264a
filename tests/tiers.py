"""Which tests the default tier leaves out: they run with `-m slow`.

They repeat a promise that a test of the default tier keeps, too, for other dtypes, operations,
architectures or backends, in ways that take long; or they compile for GPUs, or run NVSHMEM's code
on a CPU, beyond a sample. By file and function: the cases that the default tier keeps, by how their
names begin; "" is none of them. A file with "*" is left out whole.
"""

SLOW = {
    "bootstrap/test_given.py": {
        "test_communicators_are_teams_and_teams_communicators": "",
        "test_pes_without_shared_memory_meet_in_a_communicator_too": "",
        "test_a_part_of_a_job_of_mpi_is_a_job": "",
        "test_a_rank_that_does_not_come_is_named": "",
    },
    "bootstrap/test_launchers.py": {
        "test_pes_of_our_own_launcher_need_nothing_of_it": "",
        "test_a_pe_of_mpirun_that_never_comes": "",
        "test_ten_pes_more_than_cores": "",
        "test_verbose_says_how_pes_were_found": "",
        "test_torchrun": "",
        "test_an_exception_ends_a_job_of_mpirun": "",
        "test_pes_of_mpirun_on_several_machines": "",
        "test_hosts_that_make_no_sense": "options0",
        "test_hosts_without_mpirun_says_what_to_install": "",
    },
    "bootstrap/test_ranks.py": {
        "test_pe_0_that_does_not_come": "",
        "test_pe_0_that_gives_nothing": "",
        "test_mpirun_on_two_machines": "",
    },
    "bootstrap/test_values.py": {
        "test_random_values_end_in_a_job_or_an_error_of_ours": "",
        "test_as_the_user_sees_it": "",
    },
    "bootstrap/test_waiting.py": {
        "test_pe_0_names_those_that_are_missing_and_tells_the_others": "",
        "test_a_pe_that_left_is_missing_and_one_that_comes_again_is_welcome": "",
        "test_no_descriptor_is_left_when_it_fails": "",
    },
    "bootstrap/test_ways.py": {
        "test_many_more_pes_than_cores_and_descriptors_in_several_messages": "",
    },
    "check/test_command.py": {
        "test_a_disk_that_is_full_ends_the_log_and_not_the_job": "",
        "test_too_few_passes_over_the_logs_are_told": "",
    },
    "check/test_corpus.py": {
        "test_the_program_without_the_bug_is_accepted": "lock tile_is_copied",
        "test_other_backends_and_machines_are_refused": "",
        "test_the_bug_is_found_at_its_lines_and_nothing_else": (
            "box_written_again flag_of_one_gpu quiet_of_another two_streams "
            "waits_for_another additions source_changed"
        ),
    },
    "check/test_deletions.py": {
        "*": "",
    },
    "check/test_matchings.py": {
        "test_what_only_some_orders_show_is_found_in_several_runs": "",
        "test_the_program_that_is_right_in_every_order_is_accepted": "",
    },
    "check/test_plugin.py": {
        "test_the_option_is_for_all_tests_and_workers": "",
        "test_each_test_has_folders_for_its_traces": "",
        "test_the_examples_of_the_page": "",
        "test_a_test_that_fails_with_weak_memory_says_how_to_repeat_it": "",
        "test_what_is_wrong_with_pes_is_told": "",
        "test_a_mark_runs_a_test_with_several_numbers_of_pes": "",
        "test_a_seed_is_that_of_all_jobs": "",
        "test_kernels_that_are_compiled_already_cannot_be_checked": "",
        "test_what_is_no_number_of_pes_is_refused": "(True)",
    },
    "check/test_polling.py": {
        "test_what_a_loop_sees_is_recorded_once": "g",
        "test_what_a_loop_sees_of_several_words_is_recorded_twice": "test_some",
        "test_swaps_that_see_the_same_and_change_it_are_all_recorded": "",
        "test_swaps_that_change_the_word_are_all_recorded": "",
    },
    "check/test_recording.py": {
        "test_the_counter_of_a_loop_is_not_looked_at": "",
        "test_rows_end_at_a_barrier": "",
        "test_rows_of_other_values_are_other_records": "",
        "test_a_loop_is_two_runs": "",
        "test_threads_of_all_blocks_are_one_run_but_in_shared_memory": "",
        "test_rows_of_a_table_are_one_record": "",
        "test_rows_of_consecutive_threads_are_one_record": "",
    },
    "check/test_words.py": {
        "test_what_is_summed_up_is_what_all_writes_say": "",
        "test_what_is_known_by_all_that_may_have_ended_a_wait_has_happened": "",
        "test_a_wait_that_ends_in_every_order_is_not_said_to_miss_anything": "",
        "test_words_that_are_set": "",
    },
    "cli/test_compile.py": {
        "test_kernels_of_either_package_as_they_are": "",
        "test_wrong_signatures_are_told": "",
        "test_the_kernels_of_every_example_compile": "",
        "test_signatures_are_compiled_without_running": "",
    },
    "cli/test_explain.py": {
        "test_a_script_without_kernels": "",
        "test_a_script_that_fails": "",
        "test_the_page_shows_what_is_printed": "",
        "test_programs_of_numba_cuda": "",
        "test_needs_of_gpus": "",
        "test_the_text": "",
        "test_a_script_that_leaves_early": "",
        "test_without_gpus": "",
    },
    "cli/test_info.py": {
        "test_init_refuses_by_name": "GPUSHMEM_BACKEND",
    },
    "cli/test_new.py": {
        "test_the_project_works_as_it_is": "",
    },
    "cli/test_run.py": {
        "test_children_of_a_pe_are_not_pes": "",
        "test_a_number_of_pes_behind_the_script_is_noticed": "",
        "test_arguments_after_the_script_are_its_own": "",
        "test_modules_and_directories": "",
        "test_a_timeout_that_a_pe_reports_is_told_whatever_the_number_of_pes": "",
        "test_tagged_lines_stay_whole": "",
        "test_standard_input_goes_to_pe_0": "",
        "test_heap_size_is_what_was_asked": "",
    },
    "compat/test_programs.py": {
        "test_a_ring": "",
        "test_the_variable_is_set_for_the_launcher_and_without_one": "",
        "test_ranks_of_mpi": "",
        "test_tensors": "",
        "test_gpus_get_nvidias_package": "",
        "test_processes_that_a_program_starts_find_each_other": "",
        "test_a_launcher_with_the_variable": "",
        "test_a_program_may_import_the_package_itself": "",
        "test_other_backends_are_an_error": "",
        "test_strict_alone_is_a_usage_error": "",
        "test_ranks_that_are_no_pes_are_told_what_to_do": "",
    },
    "conformance/test_atomics.py": {
        "test_all_pes_at_once": "fetch_add fetch_xor",
        "test_no_addition_is_lost": "add-float32 fetch_inc-",
        "test_a_lock_of_compare_and_swap_lets_in_one_at_a_time": "int32-8",
        "test_cuda_atomics_are_atomic_between_pes": "float32 uint64",
    },
    "conformance/test_barriers.py": {
        "test_barriers_in_kernels": "3",
        "test_hosts_and_kernels_meet": "sync_all-2",
        "test_a_host_does_not_overtake_kernels": "",
    },
    "conformance/test_collective_errors.py": {
        "test_sizes_and_places_that_do_not_fit": "",
        "test_dtypes_that_differ_on_hosts": "",
        "test_a_pe_that_ends_is_named_to_those_who_wait_for_it": "0]",
        "test_a_report_says_for_whom_a_kernel_waits": "",
        "test_a_broadcast_that_not_all_call": "",
        "test_arrays_at_different_places": "1]",
        "test_different_calls": "3",
    },
    "conformance/test_collectives.py": {
        "test_all_dtypes_sizes_and_teams": "broadcast-None-some-3 reduce-sum-some-3",
        "test_many_in_a_row": "8-mixed",
        "test_more_than_the_caches_keep": "",
        "test_large_reductions_of_parts": "",
        "test_two_blocks_each_on_a_team": "3-4",
        "test_two_streams_each_on_a_team": "6",
        "test_rows_and_columns_in_turn": "",
        "test_calls_of_the_host": "",
        "test_parts_of_reducescatter_may_stay_in_place": "",
        "test_arrays_of_several_dimensions": "",
        "test_every_pe_gets_the_same_bits": "8-",
    },
    "conformance/test_flush.py": {
        "test_a_source_changed_after_it_does_not_change_what_arrives": "_block",
        "test_on_the_host_and_on_a_stream": "False-3 True-2",
    },
    "conformance/test_multimem.py": {
        "test_elements_of_all_members_are_combined": "sum-some-3",
        "test_in_place_as_an_all_reduce_of_two_shots": "3",
        "test_what_signals_tell_of_is_included": "3",
    },
    "conformance/test_ordering.py": {
        "test_who_sees_the_message_after_a_fence_sees_the_data": "put-",
        "test_a_fence_covers_threads_that_were_synchronised_with": "",
        "test_who_has_met_the_others_sees_what_they_wrote_before": "",
        "test_one_element_is_never_seen_to_go_back": "",
        "test_who_sees_the_signal_sees_the_data_of_all_who_signalled": "1000-3]",
        "test_one_fence_orders_what_goes_to_each_of_several_pes": "",
        "test_who_is_told_by_who_was_told_sees_what_the_first_wrote": "",
        "test_tickets_are_handed_out_once_and_in_order": "",
    },
    "conformance/test_products.py": {
        "test_products_are_numpys": "32-float16 128-float16 128-float32",
        "test_one_row_or_one_column": "",
        "test_parts_of_matrices_and_transposed_ones": "float32",
    },
    "conformance/test_queue_pairs.py": {
        "test_puts_and_gets": "_nbi--3 _nbi-_block-2",
        "test_a_signal_comes_after_the_data_of_its_call": "--3 _nbi-_block-2",
        "test_elements": "float16-3",
        "test_a_fence_orders_what_is_on_its_queue_pairs": "_block-3",
        "test_what_is_no_queue_pair_is_an_error": "put",
    },
    "conformance/test_rma.py": {
        "test_all_dtypes_and_layouts": "get_block iput_warp",
        "test_arrays_with_gaps_are_refused_with_a_hint": "put_signal",
        "test_single_elements": "int64",
        "test_elements_at_odd_addresses_are_moved_as_others_are": "",
        "test_nothing_is_moved_to_anywhere": "",
        "test_large_copies": "63",
    },
    "conformance/test_scoped_misuse.py": {
        "test_a_collective_is_one_call_per_pe": "3",
        "test_collectives_that_threads_call_in_turn": "5",
    },
    "conformance/test_signals.py": {
        "test_data_and_signal_go_to_the_right_place": "3-put_signal-int64 3-put_signal_nbi_block-",
        "test_one_call_waits_for_several_signals": "3",
        "test_the_host_waits_for_what_a_kernel_of_another_pe_writes": "uint64",
    },
    "conformance/test_smem.py": {
        "test_puts_from_shared_memory": "",
        "test_puts_and_gets_move_what_they_always_do": "uint8-3",
    },
    "conformance/test_teams.py": {
        "test_predefined_teams": "3",
        "test_all_strided_teams": "3",
        "test_rows_and_columns": "3",
        "test_teams_of_lists": "3",
        "test_hundreds_of_teams_one_after_the_other": "",
        "test_as_many_teams_as_there_can_be": "5",
        "test_peer_arrays_in_kernels": "3",
        "test_peer_arrays_on_the_host": "3",
        "test_teams_in_kernels_are_as_on_the_host": "3",
        "test_methods_that_wait": "3",
    },
    "conformance/test_timeouts.py": {
        "test_a_wait_ends_when_it_is_true_or_late": "kernel_wait",
        "test_a_stream_goes_on_when_the_wait_is_true_or_late": "signal wait_until]",
    },
    "conformance/test_waits.py": {
        "test_waiting_for_all_pes_and_seeing_what_they_sent": "uint32-3",
        "test_every_comparison_of_every_dtype": "int16",
        "test_a_loop_that_polls_lets_other_threads_run": "shmem.g( not",
        "test_a_wait_that_does_not_end_says_what_it_sees": "shmem.wait_until_any",
    },
    "docs/test_errors.py": {
        "test_a_page_is_short_and_its_program_does_what_it_says": "ArgumentError Deadlock",
        "test_an_error_that_ends_a_program_names_its_page_once": "of",
    },
    "docs/test_pages.py": {
        "*": "",
    },
    "docs/test_site.py": {
        "*": "",
    },
    "doctor/test_checks.py": {
        "test_files_that_are_damaged_break_nothing": "",
    },
    "kernels/test_all_reduce.py": {
        "test_the_norm_is_numpys": "",
        "test_sums_are_numpys": "3-",
        "test_every_pe_ends_with_the_same_bits": "two_shot ring",
        "test_plans_of_teams_of_different_sizes_at_the_same_time": "",
    },
    "kernels/test_gemm.py": {
        "test_products_are_numpys_and_sums_the_same_on_all_pes": "3-",
        "test_what_is_multiplied_may_be_part_of_larger_arrays": "",
        "test_many_calls_without_a_barrier_while_pes_are_held_up": "all-reduce",
    },
    "kernels/test_halo.py": {
        "test_every_number_is_numpys": "3",
        "test_many_calls_without_a_barrier_while_pes_are_held_up": "3-",
    },
    "kernels/test_jacobi.py": {
        "test_every_bit_is_numpys": "3-",
        "test_many_calls_without_a_barrier_while_pes_are_held_up": "3-",
        "test_cells_that_were_changed_reach_the_neighbours": "",
        "test_two_teams_at_once_and_a_pe_in_none": "",
    },
    "kernels/test_moe.py": {
        "test_dispatch_and_combine_are_the_references": "3-",
        "test_many_layers_without_a_barrier_while_pes_are_held_up": "",
        "test_the_fused_layer_is_the_references": "3-",
        "test_many_exchanges_without_a_barrier_while_pes_are_held_up": "low_latency",
        "test_forms_launches_and_repetitions_give_the_same_bits": "",
        "test_two_teams_at_once": "",
        "test_eight_bits_are_off_by_half_a_step_and_nan_stays": "",
        "test_the_experts_networks_as_a_launch_of_their_own": "",
    },
    "launch/test_compile_once.py": {
        "test_every_kind_of_kernel_can_be_taken_over": "",
    },
    "launch/test_deadlocks.py": {
        "test_a_kernel_that_computes_is_none": "",
        "test_one_pe_by_itself_goes_on_after_a_deadlock": "",
        "test_it_can_be_turned_off": "",
        "test_a_kernel_that_polls_may_stop_at_any_time": "",
        "test_the_report_in_the_readme": "",
        "test_numbers_of_numpy": "",
    },
    "launch/test_descriptors.py": {
        "test_spawn_where_standard_descriptors_are_closed": "",
        "test_a_script_that_closes_its_descriptors_ends_with_the_code_it_has_earned": "closed0",
    },
    "launch/test_failures.py": {
        "test_pes_watch_each_other": "exception-host",
        "test_a_job_is_followed_until_it_ends": "",
        "test_nothing_is_left_behind": "",
        "test_nohup": "",
        "test_sigusr1_asks_a_live_job": "",
        "test_following_a_job_ends_with_ctrl_c_and_the_job_goes_on": "",
        "test_every_kind_of_wait_hears": "",
        "test_set_timeout_names_a_kernel_that_spins": "",
    },
    "launch/test_interrupts.py": {
        "test_ctrl_c_while_the_command_starts": "",
    },
    "launch/test_jobs.py": {
        "test_following_any_board_ends_in_words": "locked restless not",
        "test_inspect_of_any_board_ends_in_words": "locked restless not",
    },
    "launch/test_kept_kernels.py": {
        "test_a_change_in_another_file_is_seen": "",
        "test_a_second_job_compiles_nothing": "",
    },
    "launch/test_local.py": {
        "test_every_pe_has_time_to_clean_up_after_ctrl_c": "",
        "test_a_pe_that_ignores_ctrl_c_is_killed_by_the_second": "",
        "test_signals_to_the_launcher_end_the_job": "15-new 1-copies",
        "test_kill_9_of_the_launcher_leaves_nothing": "copies",
        "test_ctrl_c_reaches_every_pe_once": "copies",
        "test_what_a_pe_started_ends_with_the_job": "copies",
        "test_many_pes_start_quickly": "",
        "test_kill_9_of_a_pe_ends_the_job_quickly": "copies",
        "test_errors_of_launches_are_not_lost_without_the_launcher": "",
    },
    "launch/test_movers.py": {
        "test_a_native_thread_may_end_a_wait": "",
    },
    "launch/test_new.py": {
        "test_options_that_make_no_sense": "options0",
    },
    "launch/test_profilers.py": {
        "test_profilers_are_refused_with_a_reason": "",
        "test_pes_end_with_the_launcher": "15",
        "test_each_pe_is_started_by_the_profiler": "ncu",
    },
    "launch/test_spawn.py": {
        "test_memory_is_as_asked_for_in_each_job": "",
        "test_after_a_job_of_one_pe": "",
    },
    "launch/test_storm.py": {
        "*": "",
    },
    "memory/test_dtypes.py": {
        "test_numbers_are_converted_when_they_are_stored": (
            "float8_e5m2-int32 float8_e5m2-bfloat16 float8_e4m3fn-float32"
        ),
        "test_sums_of_bfloat16_are_rounded_after_each_step": "",
    },
    "memory/test_interop.py": {
        "test_views_share_memory_with_kernels_and_peers": "torch",
    },
    "memory/test_like.py": {
        "test_tensors_are_taken_by_kernels_and_operations": "3",
        "test_every_dtype_of_both": "bool int16 uint32 bfloat16 float8_e4m3fn float64 complex64",
    },
    "memory/test_registration.py": {
        "test_registered_buffers_are_sources_and_destinations": "torch",
    },
    "memory/test_symmetric_buffers.py": {
        "test_what_a_buffer_is_given_its_array_has_and_the_other_way_round": "3",
    },
    "memory/test_tensors.py": {
        "test_plans_take_dtypes_of_torch": "",
    },
    "nvshmem/machine/test_rows.py": {
        "test_a_sample_has_what_it_asks_for": "numba-cuda-sass",
        "test_the_page_has_what_is_seen": "numba-cuda]",
        "test_a_fault_is_found": (
            "numba-cuda-fences numba-cuda-nothing numba-cuda-volatile numba-cuda-atomics "
            "numba-cuda-8 numba-cuda-loops"
        ),
    },
    "nvshmem/test_backend_launches.py": {
        "test_a_pe_takes_the_gpu_of_its_number": "2",
        "test_scalars": "",
        "test_arrays": "",
        "test_collective_launches": "",
        "test_attributes_of_launches": "",
        "test_hosts_do_not_wait_for_ever": "",
        "test_operations_beside_a_busy_stream": "",
        "test_a_pe_ends_though_another_has_died": "",
        "test_a_second_process_compiles_nothing": "",
        "test_pes_that_need_the_same_kernel_compile_it_once": "",
        "test_a_broken_cache_only_costs_time": "",
        "test_a_cache_that_cannot_be_written": "",
        "test_over_a_network_parts_of_warps_are_refused": "2]",
        "test_collective_launches_of_pes_that_share_a_gpu": "",
    },
    "nvshmem/test_backend_memory.py": {
        "test_tensors_of_the_heap": "",
    },
    "nvshmem/test_backend_operations.py": {
        "test_collectives_of_nothing": "",
        "test_operations_that_become_kernels": "",
        "test_waits_with_a_timeout": "",
        "test_values_put_on_a_stream": "",
        "test_arrays_of_the_host": "",
        "test_what_is_refused_in_the_words_of_the_cpu_backend": "",
    },
    "nvshmem/test_backend_waits.py": {
        "test_code_is_loaded_eagerly_unless_the_user_wants_it_otherwise": "LAZY",
        "test_a_first_launch_may_wait_for_all_kernels": "LAZY",
        "test_a_full_gpu_is_waited_for": "1",
        "test_operations_wait_for_no_kernel_of_the_default_stream": "",
        "test_code_that_nvshmem_knows_stays_loaded": "",
        "test_arrays_are_freed_without_waiting": "",
    },
    "nvshmem/test_compiler.py": {
        "test_a_multicast_store_is_one_instruction_where_there_is_one": "",
        "test_what_numba_has_in_c_is_linked": "",
        "test_options_reach_the_code": "lineinfo-]",
        "test_registers_are_limited": "",
        "test_multimem_reduce_is_the_switchs_instruction_where_there_is_one": "",
        "test_multimem_reduce_is_compiled_for_one_architecture_after_another": "",
        "test_the_workspace_of_collect_is_read_when_the_kernel_runs": "",
        "test_an_unknown_option_is_refused": "",
        "test_teams_have_attributes_and_methods": "",
    },
    "nvshmem/test_compilers.py": {
        "*": "",
    },
    "nvshmem/test_gemm.py": {
        "test_the_plain_product_is_that_of_numpy": "float32-100",
        "test_one_product_after_the_other": "float32",
        "test_the_plain_product_links": "sm_80-ptx-float16",
        "test_all_products_of_a_kernel_share_their_memory": "",
        "test_kernels_with_products_are_linked_together": "",
    },
    "nvshmem/test_kernels.py": {
        "test_the_kernels_of_a_family_compile_and_link": "",
    },
    "nvshmem/test_launching.py": {
        "test_gpushmem_run": "",
    },
    "nvshmem/test_machine_code.py": {
        "*": "",
    },
    "nvshmem/test_modules.py": {
        "test_the_example_runs": "",
        "test_other_backends_say_that_they_run_no_such_code": "null]",
    },
    "nvshmem/test_rows.py": {
        "test_rows_link": "",
        "test_a_row_compiles_for_every_dtype": (
            "put_signal_nbi_block- wait_until- p- g- fcollect atomic_add"
        ),
        "test_rows_call_the_same_functions_in_kernels_of_either_compiler": "",
        "test_the_functions_for_a_reduction_compile": "",
    },
    "nvshmem/test_smem.py": {
        "test_the_amounts_are_in_the_code": "",
        "test_before_sm_90_nothing_is_left_of_it": "",
        "test_it_links_for_later_gpus": "",
        "test_a_put_from_global_memory_is_staged_by_tma": "",
        "test_a_kernel_that_gives_no_memory_has_the_copies_and_no_fence": "",
        "test_other_copies_have_the_fence_before_them": "",
        "test_the_assembler_makes_tmas_instructions_of_it": "",
        "test_the_host_asks_on_gpus_too": "",
        "test_the_headers_keep_as_many_bytes_for_nvshmem": "",
        "test_all_threads_wait_for_their_copies_before_a_barrier_fences": "",
    },
    "nvshmem/test_suite.py": {
        "*": "",
    },
    "nvshmem/test_trace.py": {
        "test_what_a_kernel_is_launched_with_stays": "",
        "test_the_command_line": "",
        "test_what_a_job_on_a_gpu_leaves": "",
        "test_the_events_of_a_kernel_are_in_its_machine_code": "",
        "test_ranges_that_kernels_name_are_in_the_machine_code": "",
        "test_an_event_for_each_effect": "",
        "test_both_files_of_a_pe_are_one_trace": "",
    },
    "nvshmem_cpu/test_far_pes.py": {
        "test_all_kinds_of_operations": "",
        "test_the_stack_does_not_grow_with_the_number_of_requests": "",
        "test_weak_memory_shows_what_a_fence_is_for": "",
        "test_quiet_of_the_host_and_the_end_of_a_pe_wait_for_the_proxy": "",
        "test_memory_that_is_not_registered_is_refused": "",
    },
    "nvshmem_cpu/test_findings.py": {
        "test_new_data_are_seen_after_collectives": "",
        "test_sums_by_blocks_of_less_than_a_warp_are_refused": "",
        "test_a_broadcast_writes_before_all_have_read_the_last": "",
        "test_g_in_a_loop_loads_again": "",
        "test_new_data_are_seen_after": "",
        "test_new_data_are_seen_after_a_barrier": "",
        "test_a_wait_returns_the_signal_that_it_has_seen": "",
        "test_wait_until_any_takes_turns": "",
        "test_a_network_does_not_know_device_memory": "",
    },
    "nvshmem_cpu/test_multimem.py": {
        "*": "",
    },
    "nvshmem_cpu/test_proxy.py": {
        "test_rounds_over_the_end_of_the_ring": "None",
    },
    "nvshmem_cpu/test_state.py": {
        "test_the_layouts_are_those_of_the_bitcode": "",
    },
    "nvshmem_cpu/test_suite.py": {
        "test_a_sample_of_the_suite": "",
        "test_an_example": "",
        "test_pytorch_is_loaded_by_who_uses_it_only": "",
        "test_backends_of_one_process_take_turns_until_one_has_compiled_a_kernel": "",
    },
    "ops/test_errors_name_arrays.py": {
        "test_what_fails_in_a_kernel_names_the_array": "",
    },
    "ops/test_hook.py": {
        "test_what_nobody_observes_costs_nothing": "",
        "test_an_observer_sees_each_call": "put_block atomic put_signal",
    },
    "ops/test_kernel_operations.py": {
        "test_put_goes_to_the_right_pe_and_place": "block-True",
        "test_get_fetches_from_the_right_pe_and_place": "thread-False-3 block-True-3",
        "test_who_sees_the_signal_sees_the_data": "block",
        "test_p_and_g_reach_every_pe": "8",
        "test_signal_add_from_all_pes_counts_exactly": "8",
        "test_barrier_all_in_kernels_many_rounds": "block",
        "test_blocks_that_wait_for_each_other_across_pes": "3",
        "test_signal_wait_until_waits_for_exactly_its_condition": "CMP_EQ CMP_GE",
    },
    "ops/test_sweeps.py": {
        "test_all_reduce_of_many_sizes": "",
        "test_pipelines_with_delays": "",
        "test_pipelines_on_a_busy_machine": "",
    },
    "ops/test_wrong_calls.py": {
        "test_right_calls_of_the_sweep_are_taken": "",
    },
    "oracle/test_oracle.py": {
        "test_numba_cudas_tests_pass_on_the_engine": "cudapy.test_overload",
    },
    "runtime/test_launch.py": {
        "test_launches_of_a_graph_are_seen_one_by_one": "",
    },
    "runtime/test_names.py": {
        "test_jit_is_the_function_in_every_order_of_imports": "",
    },
    "runtime/test_nodes.py": {
        "test_what_only_one_node_can_do_is_refused": "",
        "test_a_part_of_a_warp_cannot_send_to_another_node": "",
        "test_what_shares_memory_is_one_node": "6",
        "test_nodes_are_equal_and_pretended_by_the_cpu_backend_only": "",
    },
    "runtime/test_null.py": {
        "test_it_does_what_the_cpu_backend_does": "put_signal signal_wait test_some",
        "test_it_is_never_taken_unasked_and_has_one_pe": "",
    },
    "runtime/test_runtime.py": {
        "test_many_inits_use_no_more_mappings": "",
        "test_a_script_without_the_launcher_is_one_pe": "",
        "test_every_pe_knows_its_number": "3",
        "test_host_put_get_p_g": "3",
        "test_bad_calls_in_kernels_name_the_line": "pe not past signal",
    },
    "runtime/test_session.py": {
        "test_programs_that_do_not_finalize_end": "sys.exit(3) raise",
        "test_an_error_ends_the_job": "in",
    },
    "runtime/test_types.py": {
        "*": "",
    },
    "simt/test_barriers.py": {
        "test_a_long_computation_before_a_barrier": "10",
    },
    "simt/test_fingerprint.py": {
        "test_keys_are_the_same_in_every_process": "",
    },
    "simt/test_fp8.py": {
        "test_integers_become_8_bit_floats": "int8-e5m2 uint16-e8m0 int64-e4m3 uint64-e4m3",
        "test_every_code_becomes_every_type": "",
        "test_rounds_to_nearest_even_and_saturates": "e5m2",
    },
    "simt/test_fuzz.py": {
        "test_random_kernels_do_what_they_do_in_cpython": "",
        "test_what_is_found_is_made_small": "",
    },
    "simt/test_interpret.py": {
        "test_the_results_are_those_of_the_compiled_engine": (
            "block_sum counts grid_meets atomics types_of beyond"
        ),
        "test_pdb_from_outside_stops_where_a_condition_holds": "",
        "test_coverage_counts_the_lines_of_kernels_and_no_others": "",
    },
    "simt/test_kernels.py": {
        "test_a_kernel_of_many_branches_is_compiled": "",
    },
    "simt/test_lockstep.py": {
        "test_only_some_threads_of_a_grid": "",
        "test_loops_dealt_out_to_the_threads": "0-64 63-2 1000-256",
        "test_loops_dealt_out_to_the_threads_with_branches_inside": "",
        "test_local_arrays_are_aligned": "",
        "test_reshapes_and_tuples_are_the_same_for_all_threads": "",
        "test_some_threads_have_something_to_do": "",
        "test_one_thread_waits_for_what_another_does_later": "",
    },
    "simt/test_machine.py": {
        "test_conversions_to_bfloat16": "float32- int16-rz uint32-rd int64-ru",
        "test_atomics_on_every_dtype": "i4-shared f8-lockstep u8-global",
        "test_arithmetic_with_directed_rounding": "fadd fmaf fdiv",
    },
    "simt/test_meeting.py": {
        "test_activemask_counts_the_lanes_that_a_barrier_has_just_let_go": "syncthreads() shfl",
        "test_shuffles_take_from_the_lane_they_name": "",
        "test_match": "",
        "test_lanes_that_have_returned_are_not_waited_for": "",
        "test_activemask_is_the_lanes_that_are_there_together": "",
    },
    "simt/test_mlir_extensions.py": {
        "*": "",
    },
    "simt/test_numba_cuda_mlir.py": {
        "*": "",
    },
    "simt/test_patch.py": {
        "test_kernels_are_kept_on_disk": "",
        "test_reduce_vectorize_and_guvectorize": "",
    },
    "simt/test_sim.py": {
        "test_a_second_run_compiles_nothing": "",
        "test_the_variable_is_heard_by_processes_that_do_not_import_gpushmem": "",
        "test_pytest_runs_in_it": "",
        "test_it_can_be_enabled_after_kernels_are_defined_and_disabled": "",
        "test_a_program_may_use_the_patch_itself_too": "",
        "test_a_session_whose_last_launch_nobody_waits_for": "",
        "test_programs_of_numba_cuda_mlir": "",
        "test_a_debugger_stops_in_a_thread": "",
    },
    "simt/test_waits_on_cores.py": {
        "test_a_failure_on_any_core_ends_all": "lockstep",
        "test_blocks_move_to_other_cores": "crowded-lockstep -fibers",
        "test_blocks_on_their_way_when_a_launch_is_cancelled": "fibers",
        "test_blocks_wait_for_one_another": "before-lockstep next-fibers",
        "test_prints_come_from_all_cores": "fibers",
        "test_what_waits_for_good_is_seen_on_all_cores_and_can_be_cancelled": "lockstep",
        "test_blocks_that_return_do_not_hold_up_the_grid": "fibers",
        "test_a_lock_goes_from_block_to_block": "fibers",
    },
    "torch/test_exchange.py": {
        "test_what_pytorch_asks_of_operators": "",
    },
    "torch/test_failures.py": {
        "test_ranks_that_wait_for_each_other": "True",
        "test_different_collectives": "",
        "test_a_rank_that_does_not_come_in_time": "",
    },
    "torch/test_fusion.py": {
        "test_what_is_left_alone": "",
        "test_layers_have_our_operators_and_the_same_results": "",
        "test_the_compiler_itself": "",
    },
    "torch/test_group.py": {
        "test_groups_without_a_rank_do_not_wait_for_it": "",
        "test_several_gathers_at_once": "",
        "test_all_reduce_of_all_dtypes_and_operations": "",
        "test_what_goes_from_each_to_each": "131077-4 3-1 0-2",
        "test_all_reduce_of_all_lengths": "1] 3]",
    },
    "torch/test_modules.py": {
        "test_experts_give_the_same_with_and_without_gradients": "",
        "test_layers_are_plain_ones_divided": "False",
        "test_options_of_layers": "",
    },
    "torch/test_operators.py": {
        "test_what_pytorch_asks_of_operators": "",
        "test_results_are_pytorchs_and_so_are_out_forms": "1-dtype0",
        "test_halos_in_compiled_programs_of_parts_of_different_lengths": "",
        "test_groups_make_plans_by_themselves": "",
        "test_gradients_are_those_of_one_process": "",
        "test_gradients_of_experts_are_those_of_one_process": "3-",
    },
    "torch/test_programs.py": {
        "test_training_gives_the_losses_of_one_process": "",
        "test_products_are_fused_where_it_pays": "",
        "test_gpushmem_run_explains_a_hang": "",
        "test_waits_of_pytorch_s_own_are_explained": "",
        "test_a_deadlock_that_one_rank_does_not_handle_ends_the_job": "",
    },
    "torch/test_records.py": {
        "test_calls_are_in_profiles": "",
    },
    "trace/test_nodes.py": {
        "test_what_goes_to_other_nodes_is_recorded": "",
    },
    "trace/test_page.py": {
        "test_spawn_traces_what_its_pes_do": "",
        "test_the_page_needs_nothing_else": "",
        "test_all_events_are_there_each_in_a_lane_of_its_own_pe": "",
    },
    "trace/test_ranges.py": {
        "test_each_range_is_there_as_often_as_it_was_named": "cpu",
        "test_groups_have_one_range_by_their_first_thread": "cpu",
        "test_ranges_nest_as_they_were_written": "cpu",
        "test_the_summary_says_what_the_pe_did_in_a_range": "cpu",
        "test_ranges_change_nothing_else_in_the_analysis": "cpu",
    },
    "trace/test_stats.py": {
        "test_everything_is_counted_once": "3-",
    },
    "trace/test_trace.py": {
        "test_each_wait_is_released_by_the_put_that_it_waited_for": "3",
        "test_64_pes": "",
        "test_a_team_meets_by_itself": "",
        "test_what_is_no_trace_is_refused": "",
    },
    "weak/test_outcomes.py": {
        "test_a_bug_shows_within_20_seeds": "",
    },
    "weak/test_programs.py": {
        "test_a_read_may_give_what_was_seen_before_until_a_wait": "g]",
        "test_what_a_get_writes_to_symmetric_memory_is_loaded": "",
        "test_host_operations_are_late_until_quiet": "",
    },
    "test_coming_from.py": {
        "test_the_program_of_a_page_runs": "coming-from-nvshmem",
    },
    "test_disk.py": {
        "test_readers_and_writers_that_are_killed_leave_all_or_nothing": "",
        "test_a_job_goes_well_whatever_has_become_of_what_was_kept": "",
    },
    "test_examples.py": {
        "test_a_trace_of_training_and_serving_shows_every_family": "",
        "test_example_runs": "ring own_plan",
        "test_training_does_not_depend_on_the_number_of_pes": "",
    },
    "test_history.py": {
        "test_what_became_slower_is_named": "",
    },
    "test_notebooks.py": {
        "test_a_notebook_puts_out_what_is_kept_in_it": "",
        "test_what_cells_define_and_put_out": "",
    },
    "test_progress.py": {
        "test_compiling_is_shown": "",
        "test_one_pe_shows_the_steps_of_an_example": "",
    },
    "test_project.py": {
        "test_importing_loads_no_more_than_it_must": "import",
    },
    "test_code_store.py": {
        "test_a_second_run_compiles_nothing": "",
    },
    "test_tutorial.py": {
        "test_programs_print_what_the_pages_show": "1_hello] 4_mistake]",
        "test_solutions_run_whose_output_is_not_shown": "3_",
    },
}

# Folders and files whose kernels are optimised: the engine's own, and those about order in memory.
OPTIMISED = (
    "simt/test_barriers.py", "simt/test_fuzz.py", "simt/test_lockstep.py",
    "simt/test_own_memory.py", "simt/test_vectors.py", "simt/test_waits_on_cores.py", "weak/",
    "conformance/test_ordering.py",
)  # fmt: skip

# Folders and files whose tests come last: they load compilers for GPUs, and PyTorch, and PEs of
# later tests would be forked from a process that is several times as large.
LARGE = "kernels/test_attention_library.py", "nvshmem/", "oracle/", "torch/"


def is_slow(path: str, name: str) -> bool:
    """Whether a test, `name` with its case in brackets, of a file below `tests` is left out."""
    known = SLOW.get(path, {})
    function, _, case = name.partition("[")
    kept = known.get("*", known.get(function))
    return kept is not None and not any(case.startswith(each) for each in kept.split())
