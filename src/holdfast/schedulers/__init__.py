"""Where jobs run: the interface of a scheduler, and the schedulers that are installed.

Schedulers are entry points, ours too: group `holdfast.schedulers`, and `torchx.schedulers` for those written for
TorchX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import attach

if TYPE_CHECKING:
    from holdfast.schedulers.api import DescribeAppResponse as DescribeAppResponse
    from holdfast.schedulers.api import ListAppResponse as ListAppResponse
    from holdfast.schedulers.api import LogQuery as LogQuery
    from holdfast.schedulers.api import Scheduler as Scheduler
    from holdfast.schedulers.api import Stream as Stream
    from holdfast.schedulers.api import list_jobs as list_jobs
    from holdfast.schedulers.api import read_log as read_log
    from holdfast.schedulers.api import validate as validate
    from holdfast.schedulers.api import wait_news as wait_news
    from holdfast.schedulers.installed import SchedulerFactory as SchedulerFactory
    from holdfast.schedulers.installed import aliases as aliases
    from holdfast.schedulers.installed import conflicts as conflicts
    from holdfast.schedulers.installed import create_scheduler as create_scheduler
    from holdfast.schedulers.installed import get_default_scheduler_name as get_default_scheduler_name
    from holdfast.schedulers.installed import get_scheduler_factories as get_scheduler_factories
else:
    # The process that supervises a local job needs none of them.
    __getattr__, __dir__, __all__ = attach(
        __name__,
        api="DescribeAppResponse ListAppResponse LogQuery Scheduler Stream list_jobs read_log validate wait_news",
        installed="SchedulerFactory aliases conflicts create_scheduler get_default_scheduler_name "
        "get_scheduler_factories",
    )
