"""Reports: one HTML file that needs no network, with the pictures as PNG and the figures as CSV beside it.

`page` is the form of a report, `charts` draws, `store_report` has what concerns stores, and `trace_report` what concerns
traces.
"""
