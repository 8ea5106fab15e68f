"""The explorer: a folder of pages that shows a program after each pass, and its step in time."""

from mpmd_trace.report.explorer.data import Recorder as Recorder
from mpmd_trace.report.explorer.pages import explorer_files as explorer_files
from mpmd_trace.report.explorer.pages import measured_rows as measured_rows
from mpmd_trace.report.explorer.pages import program_facts as program_facts
